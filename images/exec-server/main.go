// The exec server: process 1 of a sandbox, which runs commands for the holder of the sandbox's key.
//
// It is for scale: a command goes straight to the pod's address and costs the cluster's API server nothing. It uses the
// standard library only, is one static binary, and needs nothing in the image but that binary.
//
//	exec-server serve [-listen :7070]    process 1; serves nobody until it has a key
//	exec-server key                      takes the key from standard input, once; run inside, by the pod's owner
//	exec-server install PATH             copies itself there, for an init container that shares a volume
//
// What it promises:
//   - without the key nobody learns or does anything; the first key stays;
//   - a command ends when its own process does; what it leaves in the background lives on, its outputs drained;
//   - a command out of time, cancelled, or left alone by its client for a minute is killed with all that it started;
//   - output is kept until the client says that it has it, in bounded memory: above that the command is held back; so a
//     client that lost its connection gets the rest by asking again from where it was, whatever got lost on the way.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	keySocket  = "@agentic-exec-server-key" // abstract: no file that a task could remove
	keyBytes   = 128
	sendBuffer = 256 << 10 // of a connection; what is lost with it is sent again
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "exec-server:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("say `serve`, `key` or `install`")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	listen := flags.String("listen", ":7070", "address to serve on")
	socket := flags.String("key-socket", keySocket, "Unix socket that takes the key")
	report := flags.Bool("report", false, "print the address, for a port that the system chose")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	switch arguments[0] {
	case "serve":
		return serve(*listen, *socket, *report)
	case "key":
		return giveKey(os.Stdin, *socket)
	case "install":
		return install(flags.Arg(0))
	}
	return fmt.Errorf("%q is no command: say `serve`, `key` or `install`", arguments[0])
}

func serve(address, socket string, isReported bool) error {
	instance := make([]byte, 8)
	if _, err := rand.Read(instance); err != nil {
		return err
	}
	server := newServer(hex.EncodeToString(instance))
	keys, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go server.takeKey(keys)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if isReported {
		fmt.Println(listener.Addr())
	}
	go reapForever(server.processes)
	web := http.Server{
		Handler:           server.routes(),
		ReadHeaderTimeout: 30 * time.Second,
		ConnState: func(connection net.Conn, state http.ConnState) {
			if tcp, ok := connection.(*net.TCPConn); ok && state == http.StateNew {
				_ = tcp.SetWriteBuffer(sendBuffer)
			}
		},
	}
	return web.Serve(listener)
}

// giveKey hands a key to the server of this sandbox.
func giveKey(source io.Reader, socket string) error {
	key, err := io.ReadAll(io.LimitReader(source, keyBytes))
	if err != nil {
		return err
	}
	connection, err := dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := connection.Write(append([]byte(strings.TrimSpace(string(key))), '\n')); err != nil {
		return err
	}
	answer, err := io.ReadAll(connection)
	if err != nil {
		return err
	}
	if string(answer) != "taken" {
		return errors.New(string(answer))
	}
	return nil
}

// dial waits for a server that has just been started.
func dial(socket string) (net.Conn, error) {
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		connection, err := net.DialTimeout("unix", socket, 5*time.Second)
		if err == nil || time.Now().After(until) {
			return connection, err
		}
	}
}

// install copies this program, whole or not at all.
func install(path string) error {
	if path == "" {
		return errors.New("say where to: `install PATH`")
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(own)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", content, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
