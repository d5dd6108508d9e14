package top

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/printable"
)

// loop is the running command: it alone changes the model and draws. What takes time runs beside it, and sends what it
// has found.
type loop struct {
	conn   *criclient.Conn
	model  *model
	screen *screen.Screen
	shell  []string

	input *screen.Input
	// asking is true while a reading is under way: there is one at a time, however long it takes.
	asking bool
	// again is true if another reading is to follow at once.
	again   bool
	next    *time.Timer
	read    chan reading
	links   chan bool
	signals chan os.Signal
}

// reading is a sample, or why there is none.
type reading struct {
	sample *sample
	err    error
}

// errQuit ends the loop without an error.
var errQuit = errors.New("quit")

// run shows the runtime until the user quits, the terminal is gone, or a signal ends it. The terminal is what it was
// then, also after a panic.
func (l *loop) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.read, l.links, l.signals = make(chan reading, 1), make(chan bool), make(chan os.Signal, 8)
	l.next = time.NewTimer(0)
	defer l.next.Stop()
	signal.Notify(l.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGWINCH)
	defer signal.Stop(l.signals)
	defer func() { err = errors.Join(err, l.screen.Leave()) }()
	if err := l.take(); err != nil {
		return err
	}
	defer l.stopInput()
	go l.conn.WatchConnection(ctx, func(connected bool) {
		select {
		case l.links <- connected:
		case <-ctx.Done():
		}
	})
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	for {
		l.model.now = time.Now()
		if err := l.screen.Draw(l.model.render(), l.model.width); err != nil {
			return err
		}
		err := l.step(ctx, clock.C)
		if errors.Is(err, errQuit) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take takes the terminal, and reads its keys.
func (l *loop) take() error {
	if err := l.screen.Enter(); err != nil {
		return err
	}
	l.model.width, l.model.height = l.screen.Size()
	var err error
	l.input, err = screen.ReadKeys(l.screen.In)
	return err
}

// lend leaves the terminal to something else, and takes it again.
func (l *loop) lend(use func() error) error {
	l.stopInput()
	if err := l.screen.Leave(); err != nil {
		return err
	}
	if err := use(); err != nil {
		return err
	}
	return l.take()
}

func (l *loop) stopInput() {
	if l.input != nil {
		l.input.Stop()
		l.input = nil
	}
}

// step waits for what happens next.
func (l *loop) step(ctx context.Context, clock <-chan time.Time) error {
	var logged <-chan struct{}
	if l.model.log != nil {
		logged = l.model.log.buffer.changed
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-clock:
	case <-logged:
	case sig := <-l.signals:
		return l.signal(sig)
	case err := <-l.input.Failed:
		return err
	case k := <-l.input.Keys:
		l.model.now = time.Now()
		return l.do(ctx, l.model.press(k))
	case connected := <-l.links:
		if l.model.link.connection(time.Now(), connected) {
			l.ask(ctx)
		}
	case r := <-l.read:
		l.answer(ctx, r)
	case <-l.next.C:
		l.ask(ctx)
	}
	return nil
}

func (l *loop) signal(sig os.Signal) error {
	if sig == syscall.SIGWINCH {
		l.model.width, l.model.height = l.screen.Size()
		l.screen.Forget()
		return nil
	}
	return endedBy(sig)
}

// endedBy is the exit code that shells give a program which a signal has ended.
func endedBy(sig os.Signal) error {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return errQuit
	}
	return exitcode.Of(128 + int(number))
}

// ask begins a reading. If one is under way, another one follows it.
func (l *loop) ask(ctx context.Context) {
	if l.asking {
		l.again = true
		return
	}
	l.asking = true
	l.model.link.ask(time.Now())
	go func() {
		var r reading
		r.err = errs.Guard("reading of the runtime's figures", func() (err error) {
			r.sample, err = read(ctx, l.conn)
			return err
		})
		l.read <- r
	}()
}

func (l *loop) answer(ctx context.Context, r reading) {
	l.asking = false
	now := time.Now()
	l.model.now = now
	if r.err != nil {
		l.model.link.answer(now, printable.Text(errs.Message(r.err)))
	} else {
		l.model.link.answer(now, "")
		l.model.add(r.sample)
	}
	l.next.Reset(l.model.interval)
	if l.again {
		l.again = false
		l.ask(ctx)
	}
}

// do does what a key needs.
func (l *loop) do(ctx context.Context, a action) error {
	switch a {
	case quit:
		return errQuit
	case redraw:
		l.screen.Forget()
	case refresh:
		l.ask(ctx)
	case suspend:
		return l.lend(func() error { return syscall.Kill(0, syscall.SIGTSTP) })
	case openLog:
		l.openLog(ctx)
	case closeLog:
		l.model.log.stop()
		l.model.log = nil
	case runExec:
		return l.runShell(ctx)
	}
	return nil
}

func (l *loop) openLog(ctx context.Context) {
	pod, container, ok := l.model.target()
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	buffer, id, ended := newLogBuffer(), container.ID, make(chan struct{})
	go func() {
		defer close(ended)
		buffer.end(errs.Guard("reading of a log", func() error { return readLog(ctx, l.conn, id, buffer) }))
	}()
	l.model.view = logView
	l.model.log = &logShown{
		title: printable.Text(pod.FullName() + " " + container.Name), buffer: buffer, follow: true,
		stop: func() {
			cancel()
			<-ended
		},
	}
}

// runShell runs a shell in the container of the cursor. A signal ends both.
func (l *loop) runShell(ctx context.Context) error {
	pod, container, ok := l.model.target()
	if !ok {
		return nil
	}
	if !container.Running() {
		l.model.say(container.Name + " does not run: there is no shell in it")
		return nil
	}
	args := execArgs(l.conn.Endpoint, pod, container, l.shell)
	return l.lend(func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		said := make(chan string, 1)
		go func() { said <- shellIn(ctx, l.screen, args) }()
		for {
			select {
			case message := <-said:
				l.model.now = time.Now()
				if message != "" {
					l.model.say(message)
				}
				return nil
			case sig := <-l.signals:
				if sig == syscall.SIGINT || sig == syscall.SIGWINCH {
					continue // it is for the shell
				}
				cancel()
				<-said
				return endedBy(sig)
			}
		}
	})
}
