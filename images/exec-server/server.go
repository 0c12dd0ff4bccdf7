package main

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	keepAlive   = 15 * time.Second
	abandoned   = 60 * time.Second // how long a command waits for a client that has gone
	keptAfter   = 30 * time.Second // how long a command's last words are kept
	specBytes   = 16 << 20
	instanceKey = "X-Exec-Server"
)

type server struct {
	instance  string
	processes *processes

	mutex    sync.Mutex
	key      []byte // digest; nil until there is one
	commands map[string]*command
}

func newServer(instance string) *server {
	return &server{instance: instance, processes: newProcesses(), commands: map[string]*command{}}
}

func (s *server) takeKey(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
		line, err := bufio.NewReader(connection).ReadString('\n')
		key := strings.TrimSpace(line)
		answer := "a key has at least 32 characters"
		if err == nil && len(key) >= 32 {
			answer = s.setKey(key)
		}
		_, _ = connection.Write([]byte(answer))
		_ = connection.Close()
	}
}

func (s *server) setKey(key string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.key != nil {
		return "there is a key already"
	}
	digest := sha256.Sum256([]byte(key))
	s.key = digest[:]
	return "taken"
}

func (s *server) isAllowed(request *http.Request) bool {
	given := sha256.Sum256([]byte(strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")))
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.key != nil && subtle.ConstantTimeCompare(given[:], s.key) == 1
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /commands/{id}", s.start)
	mux.HandleFunc("GET /commands/{id}", s.resume)
	mux.HandleFunc("POST /commands/{id}/seen", s.seen)
	mux.HandleFunc("DELETE /commands/{id}", s.kill)
	mux.HandleFunc("DELETE /commands", s.endAll)
	mux.HandleFunc("GET /", func(writer http.ResponseWriter, _ *http.Request) { writer.WriteHeader(http.StatusNoContent) })
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if !s.isAllowed(request) {
			http.Error(writer, "no valid key", http.StatusUnauthorized)
			return
		}
		writer.Header().Set(instanceKey, s.instance)
		mux.ServeHTTP(writer, request)
	})
}

// start runs a command: a line of JSON, then its standard input until the request ends.
func (s *server) start(writer http.ResponseWriter, request *http.Request) {
	body := bufio.NewReaderSize(request.Body, 64<<10)
	var spec spec
	if err := readSpec(body, &spec); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	command := newCommand(s.processes, spec)
	if !s.add(request.PathValue("id"), command) {
		http.Error(writer, "there is a command of that id", http.StatusConflict)
		return
	}
	control := http.NewResponseController(writer)
	if err := control.EnableFullDuplex(); err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	if request.ContentLength < 0 {
		writer.Header().Set("Connection", "close") // its input may outlast the answer
	}
	command.start(body)
	s.stream(writer, request, command, 0)
	if request.ContentLength >= 0 {
		<-command.fed
	}
}

func (s *server) add(id string, command *command) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.commands[id] != nil {
		return false
	}
	s.commands[id] = command
	command.whenForgotten = func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.commands, id)
	}
	return true
}

func (s *server) find(writer http.ResponseWriter, request *http.Request) *command {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	command := s.commands[request.PathValue("id")]
	if command == nil {
		http.Error(writer, "no such command", http.StatusNotFound)
	}
	return command
}

// seen is a client's place in a command's output: what lies before it need not be kept.
func (s *server) seen(writer http.ResponseWriter, request *http.Request) {
	command := s.find(writer, request)
	if command == nil {
		return
	}
	place, err := strconv.ParseInt(request.URL.Query().Get("place"), 10, 64)
	if err != nil || !command.log.acknowledge(place) {
		http.Error(writer, "there is no such place", http.StatusBadRequest)
		return
	}
	writer.WriteHeader(http.StatusNoContent)
}

// resume sends what a client that lost its connection has not seen.
func (s *server) resume(writer http.ResponseWriter, request *http.Request) {
	command := s.find(writer, request)
	if command == nil {
		return
	}
	from, err := strconv.ParseInt(request.URL.Query().Get("from"), 10, 64)
	if err != nil || !command.log.has(from) {
		http.Error(writer, "what comes from there is no longer kept", http.StatusGone)
		return
	}
	command.log.acknowledge(from)
	s.stream(writer, request, command, from)
}

func (s *server) stream(writer http.ResponseWriter, request *http.Request, command *command, from int64) {
	control := http.NewResponseController(writer)
	turn := command.attach()
	defer command.detach(turn)
	writer.Header().Set("Content-Type", "application/octet-stream")
	writer.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return
	}
	for {
		data, ended := command.log.next(from, keepAlive, func() bool { return !command.isTurn(turn) || request.Context().Err() != nil })
		if !command.isTurn(turn) || request.Context().Err() != nil {
			return
		}
		if ended && len(data) == 0 {
			return
		}
		from += int64(len(data))
		if len(data) == 0 {
			data = frame(frameAlive, nil)
		}
		if _, err := writer.Write(data); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
	}
}

func (s *server) kill(writer http.ResponseWriter, request *http.Request) {
	if command := s.find(writer, request); command != nil {
		command.kill(false)
		writer.WriteHeader(http.StatusNoContent)
	}
}

func (s *server) endAll(writer http.ResponseWriter, _ *http.Request) {
	if err := s.processes.endAll(); err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	writer.WriteHeader(http.StatusNoContent)
}

func readSpec(body *bufio.Reader, spec *spec) error {
	line, err := readLine(body, specBytes)
	if err != nil {
		return err
	}
	return json.Unmarshal(line, spec)
}
