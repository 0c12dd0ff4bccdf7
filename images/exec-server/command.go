package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const markVariable = "AGENTIC_EXEC"

// spec is what a client asks for.
type spec struct {
	Mark           string            `json:"mark"`
	Words          []string          `json:"words"`
	Script         string            `json:"script"` // for the shell, instead of words
	Cwd            string            `json:"cwd"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	TimeoutSeconds float64           `json:"timeout_seconds"`
}

type ending struct {
	ExitCode int  `json:"exit_code"`
	TimedOut bool `json:"timed_out"`
}

type command struct {
	spec          spec
	log           *journal
	processes     *processes
	whenForgotten func()
	fed           chan struct{} // closed when standard input is no longer read from the request

	mutex    sync.Mutex
	pid      int
	timedOut bool
	hasEnded bool
	turn     int
	leaving  *time.Timer
}

func newCommand(processes *processes, spec spec) *command {
	return &command{spec: spec, log: newJournal(), processes: processes, whenForgotten: func() {}, fed: make(chan struct{})}
}

// start never fails: a command that cannot be started has an exit code, as in a shell.
func (c *command) start(stdin io.Reader) {
	pipes, err := openPipes(c.spec.Script)
	if err == nil {
		err = c.spawn(pipes, stdin)
	}
	if err != nil {
		close(c.fed)
		c.log.add(frame(frameErr, []byte(fmt.Sprintf("exec-server: %v\n", err))))
		c.end(exitCodeOf(err))
	}
}

func exitCodeOf(err error) int {
	if errors.Is(err, errNoProgram) {
		return 127
	}
	return 126
}

func (c *command) spawn(pipes *pipes, stdin io.Reader) error {
	exited, err := c.processes.spawn(c.spec, pipes)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return err
	}
	c.mutex.Lock()
	c.pid = exited.pid
	c.mutex.Unlock()
	if c.spec.TimeoutSeconds > 0 {
		time.AfterFunc(time.Duration(c.spec.TimeoutSeconds*float64(time.Second)), func() { c.kill(true) })
	}
	go c.feed(pipes.stdin, stdin)
	var pumps sync.WaitGroup
	pumps.Add(2)
	go c.pump(&pumps, pipes.stdout, frameOut, exited)
	go c.pump(&pumps, pipes.stderr, frameErr, exited)
	go func() {
		<-exited.done
		pumps.Wait()
		c.end(exited.code())
	}()
	return nil
}

func (c *command) feed(target *os.File, source io.Reader) {
	_, err := io.Copy(target, source)
	close(c.fed)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		c.kill(false) // input that was cut must not look like input that ended
	}
	_ = target.Close()
	if err == nil || errors.Is(err, syscall.EPIPE) {
		c.log.add(frame(frameFed, nil))
	}
}

// pump passes output on until its pipe ends, or until the command has ended and has left nothing in it.
func (c *command) pump(done *sync.WaitGroup, source *os.File, kind byte, exited *exit) {
	buffer := make([]byte, 64<<10)
	go func() {
		<-exited.done
		_ = source.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	}()
	for {
		count, err := source.Read(buffer)
		if count > 0 {
			c.log.add(frame(kind, buffer[:count]))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if count > 0 {
				continue
			}
			break
		}
		if err != nil {
			break
		}
		select {
		case <-exited.done:
			_ = source.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		default:
		}
	}
	done.Done()
	_ = source.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, source) // for what goes on in the background
	_ = source.Close()
}

func (c *command) end(code int) {
	c.mutex.Lock()
	c.hasEnded = true
	last := ending{ExitCode: code, TimedOut: c.timedOut}
	c.mutex.Unlock()
	if last.TimedOut {
		last.ExitCode = 124
	}
	content, _ := json.Marshal(last)
	c.log.end(frame(frameEnd, content))
	time.AfterFunc(keptAfter, c.forget)
}

func (c *command) forget() {
	c.log.drop()
	c.whenForgotten()
}

// kill ends the command and what it started.
func (c *command) kill(isLate bool) {
	c.mutex.Lock()
	if c.hasEnded {
		c.mutex.Unlock()
		return
	}
	c.timedOut = c.timedOut || isLate
	pid := c.pid
	c.mutex.Unlock()
	c.processes.killStartedBy(pid, c.spec.Mark)
}

// attach makes a client the one that is served; one that was before is sent away.
func (c *command) attach() int {
	c.mutex.Lock()
	c.turn++
	turn := c.turn
	if c.leaving != nil {
		c.leaving.Stop()
	}
	c.mutex.Unlock()
	c.log.wake()
	return turn
}

func (c *command) isTurn(turn int) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.turn == turn
}

func (c *command) detach(turn int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.turn == turn && !c.hasEnded {
		c.leaving = time.AfterFunc(abandoned, func() {
			c.kill(false)
			c.forget()
		})
	}
}
