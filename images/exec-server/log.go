package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

const (
	frameOut   = 1
	frameErr   = 2
	frameEnd   = 3
	frameAlive = 4 // not part of the log
	frameFed   = 5 // all of standard input has arrived

	keptBytes   = 8 << 20   // of a log, for a client that comes again: more than a connection can lose
	unsentBytes = 512 << 10 // that wait for the client before the command is held back
)

// frame is one byte of kind, four of length, and the content.
func frame(kind byte, content []byte) []byte {
	head := make([]byte, 5, 5+len(content))
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	return append(head, content...)
}

// journal is a command's frames in order; the oldest are forgotten, never one that has not been sent.
type journal struct {
	mutex   sync.Mutex
	changed *sync.Cond
	data    []byte
	first   int64 // place of data[0] in the whole
	sent    int64
	ended   bool
	dropped bool // nobody will read any more
}

func newJournal() *journal {
	made := &journal{}
	made.changed = sync.NewCond(&made.mutex)
	return made
}

// add appends a frame, waiting for room.
func (j *journal) add(frame []byte) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	for !j.dropped && j.first+int64(len(j.data))-j.sent > unsentBytes {
		j.changed.Wait()
	}
	if j.dropped {
		return
	}
	j.data = append(j.data, frame...)
	if len(j.data) > 2*keptBytes {
		excess := min(len(j.data)-keptBytes, int(j.sent-j.first))
		j.data = append(j.data[:0:0], j.data[excess:]...)
		j.first += int64(excess)
	}
	j.changed.Broadcast()
}

func (j *journal) end() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.ended = true
	j.changed.Broadcast()
}

func (j *journal) drop() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.dropped, j.data = true, nil
	j.changed.Broadcast()
}

func (j *journal) wake() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.changed.Broadcast()
}

func (j *journal) has(place int64) bool {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return place >= j.first && place <= j.first+int64(len(j.data))
}

// next is what lies after a place, and whether there will be no more; nothing after so long without any.
func (j *journal) next(place int64, patience time.Duration, isOver func() bool) ([]byte, bool) {
	timer := time.AfterFunc(patience, j.wake)
	defer timer.Stop()
	deadline := time.Now().Add(patience)
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.sent = max(j.sent, place)
	j.changed.Broadcast()
	for {
		if end := j.first + int64(len(j.data)); place < end && !j.dropped {
			return append([]byte(nil), j.data[place-j.first:]...), j.ended
		}
		if j.ended || j.dropped || isOver() || !time.Now().Before(deadline) {
			return nil, j.ended || j.dropped
		}
		j.changed.Wait()
	}
}

func readLine(source *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := source.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > limit {
			return nil, errors.New("the command is too long")
		}
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
