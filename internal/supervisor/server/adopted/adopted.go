// Package adopted finds the exit status of processes that this supervisor has adopted. It is not
// their parent.
package adopted

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
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Processes are adopted processes. They are children of the keeper. When the keeper has died as
// well, pid 1 is their parent, and reaps them without a report. Before Linux 6.15 their pidfds do
// not report the status either, but the kernel's process connector does. The keeper holds its
// socket, so that exits queue up in it while no supervisor reads. A supervisor takes an exit out
// of the socket only after the exit is on disk.
//
// Where pidfds report exits, all methods do nothing.
type Processes struct {
	dir     string
	log     *slog.Logger
	reserve *sysfile.Reserve

	events *sysproc.ExitEvents // nil where there are none
	// listening is closed when Follow was called for every adopted process.
	listening chan struct{}
	reading   sync.Mutex

	// mu is held while a record is written or removed, so that none is written of a process that is forgotten.
	mu      sync.Mutex
	adopted map[int]uint64 // pid to start time
}

// New returns no processes. Exits are recorded in dir.
func New(dir string, log *slog.Logger) *Processes {
	return &Processes{dir: dir, log: log, listening: make(chan struct{}), adopted: make(map[int]uint64)}
}

// recordedExit is the record of an exit.
type recordedExit struct {
	Start  uint64             `json:"start"`
	Status syscall.WaitStatus `json:"status"`
	At     time.Time          `json:"at"`
}

// DirName is the directory of recorded exits, below the state directory. Supervisors of other
// versions read it: the name stays.
const DirName = "strangers"

// SocketKey is the key by which the keeper holds the socket.
const SocketKey = "exits"

// Begin continues with the socket of a predecessor, or opens one. The records use reserve.
func (p *Processes) Begin(ctx context.Context, v *heldfiles.Store, reserve *sysfile.Reserve) {
	p.reserve = reserve
	if sysproc.PidfdsReportExits() {
		return
	}
	var err error
	if held := v.Get(SocketKey); len(held) == 1 {
		p.events, err = sysproc.ResumeExits(held[0])
	} else {
		p.events, err = sysproc.ListenExits()
	}
	if err == nil {
		err = os.MkdirAll(p.dir, 0o700)
	}
	if err != nil {
		p.log.Warn("cannot listen for exits; the exit codes of containers that outlive keeper "+
			"and supervisor will be unknown",
			"error", err)
		p.events = nil
		return
	}
	v.Hold(ctx, SocketKey, p.events.File())
}

// Follow adds an adopted process. It ignores nil. It must be called before Listen: an exit that the kernel has reported before
// Follow is not recorded.
func (p *Processes) Follow(process *record.Process) {
	if process == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adopted[process.Pid] = process.Start
}

// Listen records the exits of the processes, until ctx ends.
func (p *Processes) Listen(ctx context.Context) {
	close(p.listening)
	if p.events == nil {
		return
	}
	p.sweep()
	for p.events.Wait(ctx) == nil {
		p.collect()
	}
}

// sweep removes the records of processes that nobody has adopted: a predecessor ended after their owners had recorded
// the exits, and before it removed its own records.
func (p *Processes) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries, err := os.ReadDir(p.dir)
	for _, entry := range entries {
		pid, notPid := strconv.Atoi(entry.Name())
		start, ours := p.adopted[pid]
		var e recordedExit
		if notPid == nil && ours && record.ReadJSON(p.path(pid), &e) == nil && e.Start == start {
			continue
		}
		err = errors.Join(err, os.Remove(filepath.Join(p.dir, entry.Name())))
	}
	if err != nil {
		p.log.Warn("cannot remove the recorded exits of a predecessor", "error", err)
	}
}

// collect records every exit that the kernel has reported.
func (p *Processes) collect() {
	p.reading.Lock()
	defer p.reading.Unlock()
	for {
		event, err := p.events.Peek()
		if err == nil {
			p.record(event)
			err = p.events.Drop()
		}
		switch {
		case errors.Is(err, errs.Exhausted):
			p.log.Warn("the kernel dropped exits of processes", "error", err)
		case err != nil:
			return
		}
	}
}

func (p *Processes) record(event sysproc.ExitEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start, ours := p.adopted[event.Pid]
	if !ours || !event.Of(start) {
		return
	}
	err := record.WriteJSON(p.reserve.Write, p.path(event.Pid), &recordedExit{start, event.Status, time.Now().UTC()})
	if err != nil {
		p.log.Error("cannot record the exit of a process", "pid", event.Pid, "error", err)
	}
}

func (p *Processes) path(pid int) string { return filepath.Join(p.dir, strconv.Itoa(pid)) }

// Status returns the exit status of a process that has ended, and the time of its end. It first
// records all exits that the kernel has reported: the threads of a process may have ended before,
// with other codes (those of a program that executes another one end with 0), and the last report
// counts.
func (p *Processes) Status(ctx context.Context, process *record.Process) (status syscall.WaitStatus, at time.Time, ok bool) {
	if p.events == nil {
		return 0, at, false
	}
	select {
	case <-p.listening:
	case <-ctx.Done():
		return 0, at, false
	}
	p.collect()
	var e recordedExit
	if err := record.ReadJSON(p.path(process.Pid), &e); err != nil || e.Start != process.Start {
		return 0, at, false
	}
	return e.Status, e.At, true
}

// Forget removes the recorded exit of a process, once its owner has recorded it elsewhere.
func (p *Processes) Forget(process *record.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, adopted := p.adopted[process.Pid]
	delete(p.adopted, process.Pid)
	if !adopted || p.events == nil {
		return
	}
	if err := errs.IgnoreNotExist(os.Remove(p.path(process.Pid))); err != nil {
		p.log.Warn("cannot remove the recorded exit of a process", "pid", process.Pid, "error", err)
	}
}
