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

	keptBytes  = 4 << 20   // of a log that its client has not acknowledged; above it the command is held back
	pieceBytes = 256 << 10 // of a log that are sent at once
)

// frame is one byte of kind, four of length, and the content.
func frame(kind byte, content []byte) []byte {
	head := make([]byte, 5, 5+len(content))
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	return append(head, content...)
}

// journal is a command's frames in order. Only what the client has acknowledged is forgotten: what was sent may still
// be lost in the buffers of a connection, however many there are on the way.
type journal struct {
	mutex   sync.Mutex
	changed *sync.Cond
	data    []byte
	first   int64 // place of data[0] in the whole: all before it is acknowledged
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
	for !j.dropped && len(j.data)+len(frame) > keptBytes {
		j.changed.Wait()
	}
	if j.dropped {
		return
	}
	j.data = append(j.data, frame...)
	j.changed.Broadcast()
}

// end appends the last frame, which waits for nobody.
func (j *journal) end(frame []byte) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if !j.dropped {
		j.data = append(j.data, frame...)
	}
	j.ended = true
	j.changed.Broadcast()
}

// acknowledge forgets what lies before a place, and says whether there is such a place. May be repeated, in any order.
func (j *journal) acknowledge(place int64) bool {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if j.dropped || place <= j.first {
		return true
	}
	if place > j.first+int64(len(j.data)) {
		return false
	}
	j.data = append(j.data[:0], j.data[place-j.first:]...)
	j.first = place
	j.changed.Broadcast()
	return true
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
	for {
		if place < j.first {
			return nil, true // a client that acknowledged more by another connection has left this one
		}
		if end := j.first + int64(len(j.data)); place < end && !j.dropped {
			rest := j.data[place-j.first:]
			return append([]byte(nil), rest[:min(len(rest), pieceBytes)]...), false
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
