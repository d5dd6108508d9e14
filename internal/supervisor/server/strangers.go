package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// strangers are adopted processes: children of the keeper, or of nobody of ours when
// the keeper has died as well, and then pid 1 reaps them and tells nobody. Before
// Linux 6.15 their pidfds do not tell either; the kernel's process connector does.
// Its socket lies in the keeper, so that what ends while nobody reads waits there,
// and an exit is taken out of it only when it is written down.
//
// Where pidfds tell, all of this does nothing.
type strangers struct {
	dir     string
	log     *slog.Logger
	reserve *sysfile.Reserve

	events *sysproc.ExitEvents // nil where there are none
	// listening is closed when all that was adopted is followed.
	listening chan struct{}
	reading   sync.Mutex

	mu      sync.Mutex
	adopted map[int]uint64 // pid to start time
}

func newStrangers(dir string, log *slog.Logger) *strangers {
	return &strangers{dir: dir, log: log, listening: make(chan struct{}), adopted: make(map[int]uint64)}
}

// strangerEnd is what is written down.
type strangerEnd struct {
	Start  uint64             `json:"start"`
	Status syscall.WaitStatus `json:"status"`
	At     time.Time          `json:"at"`
}

// eventsKey is what the keeper holds the socket under.
const eventsKey = "exits"

// begin goes on with a predecessor's socket, or opens one.
func (o *strangers) begin(ctx context.Context, v *vault) {
	if sysproc.PidfdsTellExits() {
		return
	}
	var err error
	if held := v.get(eventsKey); len(held) == 1 {
		o.events, err = sysproc.ResumeExits(held[0])
	} else {
		o.events, err = sysproc.ListenExits()
	}
	if err == nil {
		err = os.MkdirAll(o.dir, 0o700)
	}
	if err != nil {
		o.log.Warn("the exit codes of containers that live through the death of keeper and supervisor will not be known", "error", err)
		o.events = nil
		return
	}
	v.hold(ctx, eventsKey, o.events.File())
}

// follow takes an adopted process in. It must be called before listen.
func (o *strangers) follow(p *process) {
	if p == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.adopted[p.Pid] = p.Start
}

// listen writes down how strangers end, until ctx does.
func (o *strangers) listen(ctx context.Context) {
	close(o.listening)
	if o.events == nil {
		return
	}
	for o.events.Wait(ctx) == nil {
		o.collect()
	}
}

// collect writes down every end that the kernel has told.
func (o *strangers) collect() {
	o.reading.Lock()
	defer o.reading.Unlock()
	for {
		event, err := o.events.Peek()
		if err == nil {
			o.note(event)
			err = o.events.Drop()
		}
		switch {
		case errors.Is(err, errs.Exhausted):
			o.log.Warn("exits of processes were missed", "error", err)
		case err != nil:
			return
		}
	}
}

func (o *strangers) note(event sysproc.ExitEvent) {
	o.mu.Lock()
	start, ours := o.adopted[event.Pid]
	o.mu.Unlock()
	if !ours || !event.Of(start) {
		return
	}
	err := writeJSON(o.reserve.Write, o.path(event.Pid), &strangerEnd{start, event.Status, time.Now().UTC()})
	if err != nil {
		o.log.Error("the end of a process is not written down", "pid", event.Pid, "error", err)
	}
}

func (o *strangers) path(pid int) string { return filepath.Join(o.dir, strconv.Itoa(pid)) }

// status is how a stranger ended, which it must have. Its threads may have ended
// before, with other codes (those of a program that execs another end with 0), so
// that all which the kernel has told is looked at first.
func (o *strangers) status(ctx context.Context, p *process) (status syscall.WaitStatus, at time.Time, ok bool) {
	if o.events == nil {
		return 0, at, false
	}
	select {
	case <-o.listening:
	case <-ctx.Done():
		return 0, at, false
	}
	o.collect()
	var end strangerEnd
	if err := readJSON(o.path(p.Pid), &end); err != nil || end.Start != p.Start {
		return 0, at, false
	}
	return end.Status, end.At, true
}

// forget is for a process whose end is recorded.
func (o *strangers) forget(p *process) {
	o.mu.Lock()
	_, adopted := o.adopted[p.Pid]
	delete(o.adopted, p.Pid)
	o.mu.Unlock()
	if !adopted || o.events == nil {
		return
	}
	if err := errs.IgnoreNotExist(os.Remove(o.path(p.Pid))); err != nil {
		o.log.Warn("the end of a process is not forgotten", "pid", p.Pid, "error", err)
	}
}
