// Package logpump copies the output of containers to their CRI logs, each byte
// exactly once, also if the process is killed at any moment and another one
// continues.
//
//	container ─▶ pipe ─splice─▶ stage (tmpfs) ─render─▶ log file
//	                              └─▶ subscribers (attach)
//
// The stage has all that was read: its size is the commit of the read. While a container
// floods, its stage is a ring, whose pages are used again; see ring.go. A small
// record, mapped from tmpfs, has what was written. The pump announces each write
// in the record before it makes it; a successor repeats the write, the same bytes
// at the same offset. So the pump never truncates the log file, and a reader that
// follows it never sees a byte change. The pump does not consume an unfinished line.
//
// The package knows pipes, files and log lines. It does not know containers,
// terminals or its callers. The caller makes sure that one process at a time opens
// pumps, and holds a duplicate of each pipe elsewhere: the content of a pipe is lost
// with its last descriptor.
package logpump

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// MaxMaxText bounds Config.MaxText: an unfinished line takes memory and room on tmpfs.
const MaxMaxText = 1 << 20

// Config configures a pump.
type Config struct {
	// Dir exists, lies on tmpfs and belongs to the container. The pump keeps its
	// stages and its record there.
	Dir string
	// LogDir is the absolute path of the sandbox's log directory and LogPath the
	// log's path below it. With LogPath "" output is read and discarded.
	LogDir, LogPath string
	// MaxText is how many bytes of a line fit into one log line; 0 means
	// crilog.DefaultMaxText. A pump that is recovered keeps what it had.
	MaxText int
	// Rate is how many bytes a second the container may write to its log, counted as in
	// the log file, or to a pump without a log. After a burst the container waits. 0 is no
	// limit.
	Rate int64
	// Log gets the pump's log lines; nil discards them.
	Log *slog.Logger
}

// logFault is an error about the log, not about the pump's own files.
func (c *Config) logFault(err error) error {
	return &errs.Fault{Cause: errs.CauseLog, Path: c.LogPath, Err: err}
}

// Pump copies the output of one container. All methods are safe for concurrent
// use.
//
//	               ┌──────── event, request ────────┐
//	Open ──▶ parked ◀──────── nothing to do ──── working ──▶ closed
//	               └── stalled (a fault) ◀──────────┘
//	                      │ time passes, request ▲
//
// Parked and stalled pumps have no goroutine. The pipes of a stalled pump fill, so its
// container waits. A container that writes more than its rate stalls its pump, too, and so does one
// that writes a lot in small pieces, for a millisecond.
type Pump struct {
	loop    *Loop
	cfg     Config
	maxText int
	gate    *gate
	files   files

	// These belong to the worker.
	streams  [crilog.Streams]stream
	journal  journal
	throttle throttle
	pace     pace
	// took is what this turn has taken from the pipes.
	took int
	// flood is true when the last turn needed a large buffer.
	flood bool
	// recovered is true when the writes of a predecessor are finished.
	recovered bool

	done chan struct{} // closed by Close

	mu      sync.Mutex
	working bool
	closed  bool
	ready   [crilog.Streams]bool
	reopens []chan error
	drains  []*drain
	// final: the container has ended, so an unfinished line is a line.
	final   bool
	fault   error
	lost    error // a copy of the journal's
	stalled *time.Timer
	backoff time.Duration
	// waitsSince is when the stall of a container above its rate began, zero for another stall or none.
	waitsSince time.Time

	subscribers fanOut

	read  [crilog.Streams]atomic.Int64
	lines atomic.Int64
	// waited is how long the container has waited for its rate, in nanoseconds.
	waited atomic.Int64
	// pending is what the last turn has left in the stages.
	pending [crilog.Streams]atomic.Int64
}

// Open makes the pump of a new container, or recovers the one whose record is in
// cfg.Dir. stdout and stderr are the read ends of the container's pipes, in blocking
// mode; stderr is nil with a terminal. In recovery either may be nil if it is lost: the
// pump still writes the content of the stages. The pump closes the pipes, except when
// Open fails.
//
// For a new container Open opens the log before it returns: Invalid if the path escapes
// the log directory, Unavailable if a directory is missing or ctx ends while the file
// system hangs, and an errs.Fault with CauseLog in each case. A recovered pump opens the
// log later, since a hung disk must not stop the recovery of the others.
func (l *Loop) Open(ctx context.Context, cfg Config, stdout, stderr *os.File) (_ *Pump, err error) {
	p, err := newPump(l, cfg, stdout, stderr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.undoOpen()
		}
	}()
	if p.cfg.LogPath == "" {
		p.recovered = true
		if err := p.clearStages(); err != nil {
			return nil, err
		}
		return p, p.begin()
	}
	record, err := openRecord(recordPath(cfg.Dir))
	switch {
	case err == nil:
		err = p.adopt(record)
	case errors.Is(err, errs.NotFound):
		err = p.create(ctx)
	}
	if err != nil {
		return nil, err
	}
	return p, p.begin()
}

func newPump(l *Loop, cfg Config, stdout, stderr *os.File) (*Pump, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxText == 0 {
		cfg.MaxText = crilog.DefaultMaxText
	}
	// The socket is a border: what the daemon has checked is checked again here, and in
	// checkPath.
	if cfg.Rate < 0 {
		return nil, fmt.Errorf("log rate %d is negative: %w", cfg.Rate, errs.Invalid)
	}
	if cfg.MaxText < 1 || cfg.MaxText > MaxMaxText {
		return nil, fmt.Errorf("log line length %d is not between 1 and %d: %w", cfg.MaxText, MaxMaxText, errs.Invalid)
	}
	p := &Pump{loop: l, cfg: cfg, maxText: cfg.MaxText, throttle: newThrottle(cfg.Rate), done: make(chan struct{})}
	for i, pipe := range [crilog.Streams]*os.File{stdout, stderr} {
		p.streams[i].id = crilog.Stream(i)
		p.streams[i].pipe = pipe
		p.streams[i].files = &p.files
		p.streams[i].path = stagePath(cfg.Dir, crilog.Stream(i))
	}
	p.journal.log = cfg.Log
	if cfg.LogPath != "" {
		if err := checkPath(cfg.LogDir, cfg.LogPath); err != nil {
			return nil, cfg.logFault(err)
		}
		p.journal.place = l.locate(cfg.LogDir, cfg.LogPath)
	}
	p.gate = l.gates.take(p.pod())
	p.subscribers.budget = &p.gate.subscribers
	return p, nil
}

// pod is what the containers of one pod have in common here: their log directory.
func (p *Pump) pod() string {
	if p.cfg.LogPath == "" {
		return p.cfg.Dir
	}
	return p.cfg.LogDir
}

func recordPath(dir string) string { return filepath.Join(dir, "log.record") }

// adopt takes over from a predecessor.
func (p *Pump) adopt(r *record) error {
	j := &p.journal
	j.record, j.pos = r, r.load()
	p.maxText = r.maxText()
	for i := range p.streams {
		if err := p.load(&p.streams[i]); err != nil {
			return err
		}
	}
	if stream, end, ok := j.pending(); ok && end > p.streams[stream].size {
		return fmt.Errorf("log record in %s speaks of %d bytes of %s, its stage has %d: %w",
			p.cfg.Dir, end, stream, p.streams[stream].size, errs.State)
	}
	j.publish()
	p.subscribers.startReplay()
	return nil
}

// load opens the stage or the ring of a predecessor.
func (p *Pump) load(s *stream) (err error) {
	pos := &p.journal.pos
	if pos.rings[s.id].room != 0 {
		pos.rings[s.id], err = s.loadRing(p.cfg.Dir, pos.consumed[s.id], pos.rings[s.id], p.journal.record.seal())
		return err
	}
	pos.consumed[s.id], err = s.load(pos.consumed[s.id])
	return err
}

// create begins the log of a new container.
func (p *Pump) create(ctx context.Context) error {
	if err := p.clearStages(); err != nil {
		return err
	}
	file, first, err := p.openLog(ctx)
	if err != nil {
		return p.cfg.logFault(err)
	}
	p.journal.file, p.journal.pos = file, first
	p.journal.record, err = createRecord(recordPath(p.cfg.Dir), p.maxText, first)
	p.recovered = true
	return err
}

// openLog opens the log of a new container and gives up waiting when ctx ends.
func (p *Pump) openLog(ctx context.Context) (logFile, position, error) {
	type result struct {
		file logFile
		pos  position
		err  error
	}
	where, gate := p.journal.place, p.gate
	results := make(chan result)
	go func() {
		var r result
		if r.err = gate.enter(ctx.Done()); r.err == nil {
			r.file, r.pos, r.err = openAtEnd(where)
			gate.leave()
		}
		select {
		case results <- r:
		case <-ctx.Done():
			if r.file != nil {
				r.file.Close()
			}
		}
	}()
	select {
	case r := <-results:
		return r.file, r.pos, r.err
	case <-ctx.Done():
		return nil, position{}, fmt.Errorf("cannot open the log %s in %s: its file system does not answer (%w): %w",
			p.cfg.LogPath, p.cfg.LogDir, ctx.Err(), errs.Unavailable)
	}
}

func openAtEnd(where place) (logFile, position, error) {
	file, err := where.open(true)
	if err != nil {
		return nil, position{}, err
	}
	st, err := file.state()
	if err != nil {
		file.Close()
		return nil, position{}, err
	}
	return file, position{logPosition: logPosition{log: st.ID, offset: st.Size}}, nil
}

// clearStages removes stages that belong to no record.
func (p *Pump) clearStages() error {
	for i := range p.streams {
		for _, path := range []string{p.streams[i].path, ringPath(p.cfg.Dir, p.streams[i].id)} {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("cannot remove an old log stage: %w", err)
			}
		}
	}
	return nil
}

// begin starts the watch of the pipes, and a worker that finishes unfinished writes.
func (p *Pump) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop.register(p)
	for i := range p.streams {
		s := &p.streams[i]
		if s.pipe == nil {
			s.ended = true
			continue
		}
		if err := p.loop.poller.Add(s.pipe, s.token); err != nil {
			p.undoOpen()
			return err
		}
	}
	if !p.recovered {
		p.ready = [crilog.Streams]bool{true, true}
		p.start()
	}
	return nil
}

// undoOpen undoes a failed Open; the pipes stay the caller's. p.mu is held.
func (p *Pump) undoOpen() {
	p.loop.unregister(p)
	for i := range p.streams {
		p.streams[i].pipe = nil
	}
	p.shutDown()
}

// Close ends the pump and keeps its files for a successor. It does not wait for a
// worker whose disk hangs: the worker ends when its call returns.
func (p *Pump) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shutDown()
}

// Abandon ends the pump of a container that is removed. It makes no file from then on, also when its worker still
// runs: the caller removes the directory. Output that is not in the log by then is lost. The log itself stays.
func (p *Pump) Abandon() {
	p.files.end()
	p.Close()
}
