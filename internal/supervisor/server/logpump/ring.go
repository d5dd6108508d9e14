package logpump

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// A stage that grows and is emptied costs more than all the rest of a pump: the kernel allocates a
// page for each 4 KiB, and frees it. So the output of a container that floods goes into a ring, a
// file of constant size whose pages stay, and the pump renders lines from its mapping.
//
// The size of a ring's file is no commit of a read. These are the steps of one read, and what a
// successor does if it stops there:
//
//	write the seal into the end of   nothing was read, or a part: the pages whose end is not
//	each page, publish filling       the seal have been read
//	splice over the pages
//	publish the new size             go on behind it
//
// The kernel fills the pages in order, takes from the pipe what it has copied, and looks for a kill
// between two pages at most. The seal is random and never leaves the node: a container cannot write
// it. A ring is filled by whole pages, so a rest shorter than a page goes into the stage.

const (
	// ringSlots is how many streams have a ring at the same time. Further ones use their stages.
	ringSlots = 8
	// ringAfter is how many large pieces a stream needs to get a ring, each within bigWithin after
	// the one before it.
	ringAfter = 4
	bigWithin = 20 * time.Millisecond
	// ringIdle is after how many turns without output a stream gives its ring back.
	ringIdle = 8
	// wideRoom is the room of the pipe of a stream with a ring: the container and its pump shall both
	// find work for some time, and not wake each other for each piece. The pages belong to the
	// container, which pays for what it has written.
	wideRoom = 512 << 10
	// pipeRoom is the room of all other pipes, the kernel's default. Wide pipes count against a limit
	// that all processes of one user share.
	pipeRoom = 64 << 10
)

// seal is what the end of an unread page of a ring contains.
type seal [16]byte

func newSeal() (s seal) {
	rand.Read(s[:]) // never fails
	return s
}

// ring is the stage of a stream while its container floods. Offsets grow without end, like those of
// a stage: offset o is at o modulo room in the file.
type ring struct {
	file *os.File
	// mem is the file, twice: each part of the ring is contiguous in it.
	mem  []byte
	room int64
}

func ringPath(dir string, id crilog.Stream) string {
	return filepath.Join(dir, id.String()+".ring")
}

// ringRoom is the size of the ring of a pump with such lines: a piece, and an unfinished line before
// it, which may begin anywhere in a page.
func ringRoom(maxText int) int64 {
	return batchMax + (int64(maxText)+2*pageSize)&^(pageSize-1)
}

// createRing makes a ring whose memory is all there: an error means that tmpfs is full.
func createRing(files *files, path string, room int64) (_ *ring, err error) {
	file, err := files.make(path, os.O_TRUNC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a ring of output: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(path))
		}
	}()
	if err := sysfd.Allocate(file, room); err != nil {
		return nil, err
	}
	mem, err := sysfd.MapTwice(file, int(room))
	if err != nil {
		return nil, err
	}
	return &ring{file: file, mem: mem, room: room}, nil
}

// openRing opens the ring of a predecessor.
func openRing(path string, room int64) (_ *ring, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open a ring of output: %w", err)
	}
	st, err := file.Stat()
	if err == nil && st.Size() != room {
		err = fmt.Errorf("ring of output %s has %d bytes, its record says %d: %w", path, st.Size(), room, errs.State)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	mem, err := sysfd.MapTwice(file, int(room))
	if err != nil {
		file.Close()
		return nil, err
	}
	return &ring{file: file, mem: mem, room: room}, nil
}

// bytes returns the content from offset begin to end, which is at most room behind it.
func (r *ring) bytes(begin, end int64) []byte {
	at := begin % r.room
	return r.mem[at : at+end-begin]
}

// ends calls use with the last bytes of each page from offset begin to end, both at a page, until it
// returns false.
func (r *ring) ends(begin, end int64, use func(last []byte) bool) {
	for at := begin; at < end; at += pageSize {
		page := r.bytes(at, at+pageSize)
		if !use(page[pageSize-len(seal{}):]) {
			return
		}
	}
}

// prepare writes the seal into each page of a read that follows.
func (r *ring) prepare(begin, end int64, with seal) {
	r.ends(begin, end, func(last []byte) bool {
		copy(last, with[:])
		return true
	})
}

// filled returns how many bytes a read into the prepared pages has brought before it stopped.
func (r *ring) filled(begin, end int64, with seal) (n int64) {
	r.ends(begin, end, func(last []byte) bool {
		if seal(last) == with {
			return false
		}
		n += pageSize
		return true
	})
	return n
}

// close unmaps the ring; the file stays.
func (r *ring) close() {
	// It fails only for addresses that were never mapped.
	_ = sysfd.UnmapTwice(r.mem)
	r.mem = nil
	r.file.Close()
}

// enterRing moves a stream into a ring if one is free. Without one, and without memory for it, the
// stream continues with its stage. No write is unfinished.
func (p *Pump) enterRing(s *stream) error {
	select {
	case p.loop.ringSlots <- struct{}{}:
	default:
		return nil
	}
	r, err := createRing(&p.files, ringPath(p.cfg.Dir, s.id), ringRoom(p.maxText))
	if err != nil {
		p.loop.ringSlots.free()
		s.bigPieces = 0
		p.cfg.Log.Debug("no ring for a container that writes a lot", "error", err)
		return nil
	}
	// The next read begins at a page.
	waiting := s.size - s.consumed
	size := (waiting + pageSize - 1) &^ (pageSize - 1)
	if _, err := s.stage.ReadAt(r.bytes(size-waiting, size), s.consumed); err != nil && waiting > 0 {
		r.close()
		p.loop.ringSlots.free()
		return fmt.Errorf("cannot read a log stage: %w", err)
	}
	p.journal.useRing(s.id, size-waiting, ringPosition{room: r.room, size: size})
	s.ring, s.hasSlot, s.idleTurns, s.bigPieces = r, true, 0, 0
	s.resize(wideRoom)
	s.move(size-waiting, size)
	s.holes = 0
	if err := s.stage.Truncate(0); err != nil {
		return fmt.Errorf("cannot empty a log stage: %w", err)
	}
	return nil
}

// leaveRing moves what is left in a ring into the stage, and frees the ring. No write is unfinished.
func (p *Pump) leaveRing(s *stream) error {
	if err := s.openStage(); err != nil {
		return err
	}
	if err := s.stage.Truncate(0); err != nil {
		return fmt.Errorf("cannot empty a log stage: %w", err)
	}
	waiting := s.size - s.consumed
	if _, err := s.stage.WriteAt(s.ring.bytes(s.consumed, s.size), 0); err != nil {
		return fmt.Errorf("cannot write to a log stage: %w", err)
	}
	p.journal.useRing(s.id, 0, ringPosition{})
	s.move(0, waiting)
	s.holes = 0
	p.dropRing(s)
	s.resize(pipeRoom)
	if err := os.Remove(ringPath(p.cfg.Dir, s.id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove a ring of output: %w", err)
	}
	return nil
}

// closeRing leaves the ring for a successor. It moves what is left into the stage if it can, so that
// also a supervisor which knows no rings can continue.
func (p *Pump) closeRing(s *stream) {
	if s.ring == nil {
		return
	}
	if _, _, unfinished := p.journal.pending(); !unfinished && !p.files.ended() {
		if err := p.leaveRing(s); err != nil {
			p.cfg.Log.Warn("a ring of output stays for the next supervisor", "error", err)
		}
	}
	p.dropRing(s)
}

// dropRing closes the ring and gives its slot to another stream.
func (p *Pump) dropRing(s *stream) {
	if s.ring == nil {
		return
	}
	s.ring.close()
	s.ring = nil
	if s.hasSlot {
		p.loop.ringSlots.free()
	}
	s.hasSlot = false
}

// resize changes the room of the pipe. It stays as it is without the permission, or while more is in it.
func (s *stream) resize(room int) {
	if s.pipe != nil {
		_ = sysfd.ResizePipe(s.pipe, room) // costs speed, or some memory later
	}
}

// move changes the offsets of the stream's unconsumed bytes: they are from begin to end now.
func (s *stream) move(begin, end int64) {
	s.teed += end - s.size
	s.consumed, s.size = begin, end
}

// fillRing takes up to most bytes from the pipe, in pages, and returns how many. It takes none if
// less than a page is there.
func (p *Pump) fillRing(s *stream, most int) (int, error) {
	if s.pipe == nil || s.ended || s.size%pageSize != 0 {
		return 0, nil
	}
	there, err := sysfd.PipeBuffered(s.pipe)
	if err != nil {
		return 0, err
	}
	r := s.ring
	free := r.room - (s.size - s.consumed&^(pageSize-1))
	n := min(int64(most), int64(there), free, r.room-s.size%r.room) &^ (pageSize - 1)
	if n == 0 {
		return 0, nil
	}
	r.prepare(s.size, s.size+n, p.journal.record.seal())
	p.journal.fillRing(s.id, s.size, s.size+n)
	took, err := sysfd.SplicePipe(r.file, s.size%r.room, s.pipe, int(n))
	s.size += int64(took)
	s.total += int64(took)
	p.journal.fillRing(s.id, s.size, 0)
	if err != nil {
		return took, err
	}
	return took, nil
}

// loadRing opens the ring of a predecessor, which has stopped at any point.
func (s *stream) loadRing(dir string, consumed int64, pos ringPosition, with seal) (ringPosition, error) {
	r, err := openRing(ringPath(dir, s.id), pos.room)
	if err != nil {
		return pos, err
	}
	if pos.filling != 0 {
		pos.size += r.filled(pos.size, pos.filling, with)
		pos.filling = 0
	}
	s.ring = r
	s.size, s.teed = pos.size, pos.size
	s.consumed = consumed
	return pos, nil
}
