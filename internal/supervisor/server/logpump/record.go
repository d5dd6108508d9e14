package logpump

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// position is the state of a pump's log: everything that a successor needs to continue
// it. It changes as a whole.
type position struct {
	logPosition
	rings [crilog.Streams]ringPosition
}

// ringPosition is the state of a stream in a ring.
type ringPosition struct {
	// room is the size of the ring's file, 0 when the stream has no ring.
	room int64
	// size is how much the ring has got, as an offset like consumed; filling is the size after a
	// read that was begun, 0 when none was.
	size, filling int64
}

// logPosition is the part of a position that each version of the record has.
type logPosition struct {
	// consumed is how much of each stage has reached the log.
	consumed [crilog.Streams]int64
	// intent is 1 + the stream of which the bytes from consumed to end are being
	// written at offset, with time at in every line; 0 when none are.
	intent int64
	end    int64
	at     int64
	// offset is where the next lines go in the file log.
	offset int64
	log    sysfile.FileID
}

const (
	recordMagic = 0x676f6c6874726562 // "berthlog"
	// recordVersion is the version of a record without a ring. A supervisor that knows no rings
	// can continue it. ringVersion is that of a record with one.
	recordVersion = 1
	ringVersion   = 2
	recordSize    = 4096
)

// page is the record in memory that is shared with a file on tmpfs: a killed process
// leaves there what it stored last. Stores alternate between two positions, and the
// store of turn makes the new one valid, so that no reader sees a partly written one.
type page struct {
	magic     atomic.Uint64
	version   atomic.Uint32
	maxText   uint32
	turn      atomic.Uint64
	_         [40]byte
	positions [2]logPosition
	// Only in ringVersion:
	rings [2][crilog.Streams]ringPosition
	seal  seal
}

// record is the mapped page of one container.
type record struct {
	bytes []byte
	page  *page
}

// createRecord makes the record of a new container.
func createRecord(path string, maxText int, first position) (_ *record, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make a log record: %w", err)
	}
	defer f.Close()
	// Written, not only extended: a full tmpfs must fail here, not kill the
	// process at the first store.
	if _, err := f.Write(make([]byte, recordSize)); err != nil {
		return nil, fmt.Errorf("cannot make a log record: %w", err)
	}
	r, err := mapRecord(f)
	if err != nil {
		return nil, err
	}
	r.page.version.Store(recordVersion)
	r.page.maxText = uint32(maxText)
	r.page.seal = newSeal()
	r.publish(first)
	r.page.magic.Store(recordMagic)
	return r, nil
}

// openRecord maps the existing record of a container. NotFound if there is none, or
// if its creation did not finish.
func openRecord(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("log record %s: %w", path, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a log record: %w", err)
	}
	defer f.Close()
	st, err := sysfile.StatFile(f)
	if err != nil {
		return nil, err
	}
	if st.Size < recordSize {
		return nil, fmt.Errorf("log record %s is unfinished: %w", path, errs.NotFound)
	}
	r, err := mapRecord(f)
	if err != nil {
		return nil, err
	}
	if err := r.check(path); err != nil {
		r.close()
		return nil, err
	}
	if r.page.seal == (seal{}) {
		r.page.seal = newSeal() // a record of a supervisor that knew no rings
	}
	return r, nil
}

func mapRecord(f *os.File) (*record, error) {
	b, err := sysfd.MapShared(f, recordSize)
	if err != nil {
		return nil, err
	}
	return &record{bytes: b, page: (*page)(unsafe.Pointer(&b[0]))}, nil
}

func (r *record) check(path string) error {
	switch magic := r.page.magic.Load(); {
	case magic == 0:
		return fmt.Errorf("log record %s is unfinished: %w", path, errs.NotFound)
	case magic != recordMagic:
		return fmt.Errorf("log record %s is none of ours: %w", path, errs.State)
	case r.version() != recordVersion && r.version() != ringVersion:
		return fmt.Errorf("log record %s has version %d, known are %d and %d: %w",
			path, r.version(), recordVersion, ringVersion, errs.Unsupported)
	case r.page.maxText == 0 || r.page.maxText > MaxMaxText:
		return fmt.Errorf("log record %s is damaged: line length %d: %w", path, r.page.maxText, errs.State)
	}
	pos := r.load()
	if pos.intent < 0 || pos.intent > crilog.Streams || min(pos.consumed[0], pos.consumed[1], pos.offset) < 0 {
		return fmt.Errorf("log record %s is damaged: %+v: %w", path, pos, errs.State)
	}
	for i, ring := range pos.rings {
		if ring != (ringPosition{}) && !ring.valid(pos.consumed[i]) {
			return fmt.Errorf("log record %s is damaged: %+v: %w", path, pos, errs.State)
		}
	}
	return nil
}

// ringMax bounds the size of a ring that a record may have.
const ringMax = 64 << 20

// valid reports whether a ring can be in this state after so much was consumed.
func (r ringPosition) valid(consumed int64) bool {
	return r.room > 0 && r.room <= ringMax && r.room%pageSize == 0 &&
		r.size >= consumed && r.size-consumed <= r.room &&
		(r.filling == 0 || r.filling > r.size && r.filling-consumed&^(pageSize-1) <= r.room &&
			r.size%pageSize == 0 && r.filling%pageSize == 0)
}

func (r *record) version() uint32 { return r.page.version.Load() }

// setVersion changes the version. The current position has no ring.
func (r *record) setVersion(v uint32) { r.page.version.Store(v) }

func (r *record) seal() seal { return r.page.seal }

// load returns the position published last.
func (r *record) load() position {
	turn := r.page.turn.Load() & 1
	pos := position{logPosition: r.page.positions[turn]}
	if r.version() == ringVersion {
		pos.rings = r.page.rings[turn]
	}
	return pos
}

// publish stores pos for a successor.
func (r *record) publish(pos position) {
	next := r.page.turn.Load() + 1
	r.page.positions[next&1] = pos.logPosition
	r.page.rings[next&1] = pos.rings
	r.page.turn.Store(next)
}

func (r *record) maxText() int { return int(r.page.maxText) }

// close unmaps the page; the file stays.
func (r *record) close() {
	// It fails only for an address that was never mapped.
	_ = sysfd.Unmap(r.bytes)
	r.bytes, r.page = nil, nil
}
