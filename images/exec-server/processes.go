package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var errNoProgram = errors.New("no such program")

// exit is how one process ended.
type exit struct {
	pid    int
	done   chan struct{}
	status syscall.WaitStatus
}

func (e *exit) code() int {
	if e.status.Signaled() {
		return 128 + int(e.status.Signal())
	}
	return e.status.ExitStatus()
}

// processes starts and reaps; as process 1 we are given orphans, too.
type processes struct {
	mutex   sync.Mutex // held from a fork until its child is known, so that no end is missed
	running map[int]*exit
}

func newProcesses() *processes {
	return &processes{running: map[int]*exit{}}
}

func reapForever(all *processes) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	for range signals {
		for all.reapOne() {
		}
	}
}

func (p *processes) reapOne() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return errors.Is(err, syscall.EINTR)
	}
	if ended := p.running[pid]; ended != nil {
		delete(p.running, pid)
		ended.status = status
		close(ended.done)
	}
	return true
}

type pipes struct {
	stdin, stdout, stderr *os.File
	theirs                []*os.File
}

// openPipes makes a command's streams; a script comes in by a fourth, since an argument is bounded to 128 KiB.
func openPipes(script string) (*pipes, error) {
	made := &pipes{}
	input, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	made.stdin, made.theirs = ours, []*os.File{input}
	for _, stream := range []**os.File{&made.stdout, &made.stderr} {
		ours, theirs, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		*stream, made.theirs = ours, append(made.theirs, theirs)
	}
	if script != "" {
		theirs, ours, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		made.theirs = append(made.theirs, theirs)
		go func() {
			_, _ = ours.WriteString(script)
			_ = ours.Close()
		}()
	}
	return made, nil
}

func (p *pipes) closeTheirs() {
	for _, file := range p.theirs {
		_ = file.Close()
	}
}

func (p *pipes) closeOurs() {
	for _, file := range []*os.File{p.stdin, p.stdout, p.stderr} {
		_ = file.Close()
	}
}

func (p *processes) spawn(spec spec, pipes *pipes) (*exit, error) {
	words := spec.Words
	if spec.Script != "" {
		words = []string{findShell(), "-c", `s=$(cat <&3); exec 3<&-; eval "$s"`}
	}
	if len(words) == 0 {
		return nil, errors.New("no command was given")
	}
	attributes := &syscall.ProcAttr{Dir: spec.Cwd, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, file := range pipes.theirs {
		attributes.Files = append(attributes.Files, file.Fd())
	}
	home, err := becomeUser(spec.User, attributes)
	if err != nil {
		return nil, err
	}
	environment := environmentOf(spec, home)
	attributes.Env = environment
	if info, err := os.Stat(spec.Cwd); spec.Cwd != "" && (err != nil || !info.IsDir()) {
		return nil, fmt.Errorf("cannot start in %s", spec.Cwd)
	}
	program, err := findProgram(words[0], environment)
	if err != nil {
		return nil, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	pid, err := syscall.ForkExec(program, words, attributes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", words[0], err)
	}
	started := &exit{pid: pid, done: make(chan struct{})}
	p.running[pid] = started
	return started, nil
}

// environmentOf names each variable once: of two, most programs would see the first.
func environmentOf(spec spec, home string) []string {
	environment := append(os.Environ(), markVariable+"="+spec.Mark)
	for name, value := range spec.Env {
		environment = append(environment, name+"="+value)
	}
	if home != "" {
		environment = append(environment, "HOME="+home)
	}
	last := map[string]int{}
	for place, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		last[name] = place
	}
	kept := environment[:0:0]
	for place, entry := range environment {
		if name, _, _ := strings.Cut(entry, "="); last[name] == place {
			kept = append(kept, entry)
		}
	}
	return kept
}

func findShell() string {
	for _, shell := range []string{"/bin/bash", "/usr/bin/bash"} {
		if _, err := os.Stat(shell); err == nil {
			return shell
		}
	}
	return "/bin/sh"
}

// findProgram looks in the command's own PATH.
func findProgram(name string, environment []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, entry := range environment {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			for _, folder := range filepath.SplitList(path) {
				if found, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
					return found, nil
				}
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, errNoProgram)
}

// becomeUser gives a process another user, and returns his home; empty for our own.
func becomeUser(name string, attributes *syscall.ProcAttr) (string, error) {
	if name == "" || name == strconv.Itoa(os.Getuid()) {
		return "", nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		found, err = user.LookupId(name)
	}
	if err != nil {
		return "", fmt.Errorf("no user %s", name)
	}
	uid, _ := strconv.ParseUint(found.Uid, 10, 32)
	gid, _ := strconv.ParseUint(found.Gid, 10, 32)
	if int(uid) == os.Getuid() {
		return "", nil
	}
	attributes.Sys.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return found.HomeDir, nil
}

// killStartedBy kills a session, and what has left it but still carries the mark, until nothing new is found.
func (p *processes) killStartedBy(session int, mark string) {
	needle := []byte(markVariable + "=" + mark)
	for range 20 {
		found := false
		for _, pid := range others() {
			state, sid := stateOf(pid)
			if state == "Z" || state == "" {
				continue
			}
			environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if (session > 0 && sid == session) || bytes.Contains(environment, needle) {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
		if !found {
			return
		}
	}
}

// endAll kills everything but ourselves. Only process 1 may: elsewhere that would be the machine.
func (p *processes) endAll() error {
	if os.Getpid() != 1 {
		return errors.New("only as process 1 of a sandbox")
	}
	for range 400 {
		_ = syscall.Kill(-1, syscall.SIGKILL)
		left := false
		for _, pid := range others() {
			state, _ := stateOf(pid)
			left = left || (state != "Z" && state != "")
		}
		if !left {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("processes did not end")
}

func others() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func stateOf(pid int) (state string, session int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 4 {
		return "", 0
	}
	session, _ = strconv.Atoi(fields[3])
	return fields[0], session
}
