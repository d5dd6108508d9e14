package handler

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
)

const (
	// askTimeout bounds one question to a program.
	askTimeout = 5 * time.Second
	// outputTimeout bounds the wait for the end of a killed program's output.
	outputTimeout = time.Second
	// maxOutput bounds an answer.
	maxOutput = 1 << 20
	// answersTimeout bounds all questions to a program. The execution of one on a file system that hangs does not end with
	// askTimeout.
	answersTimeout = 4 * askTimeout
	// lookTimeout bounds a look at the file of a program, and glanceTimeout one for Last.
	lookTimeout   = 2 * time.Second
	glanceTimeout = 250 * time.Millisecond
)

// Facts are what a program says of itself.
type Facts struct {
	// Version is the first line of its answer to --version.
	Version string
	// RecursiveReadOnly: it can make mounts read-only with all below them. IDMapped: it can map the
	// ids of mounts, which pods with user namespaces need.
	RecursiveReadOnly, IDMapped bool
	// Fault is why the program cannot be used, or why its features are not known; "" for no fault.
	Fault string
	// Broken is true when it cannot be used.
	Broken bool
	// Pending is true while it has not answered for the first time: nothing else is known of it.
	Pending bool
}

// faultLife is how long a fault holds before the program is asked again: a busy host may be the cause.
const faultLife = time.Minute

// Prober asks the programs of handlers for their facts, once for each version of a file. The zero value is
// ready.
type Prober struct {
	mu    sync.Mutex
	known map[asked]answered
	// looks are those at the files of programs, whose file systems may hang.
	looks probe.Pool
	// asking lets concurrent callers share one run of a program, also one that hangs.
	asking singleflight.Group
}

// looked is what a look at the file of a program has found.
type looked struct {
	file file
	err  error
}

// asked is what an answer depends on, beside the version of the file.
type asked struct{ name, path, args, options string }

// answered is what a version of a program said, and when.
type answered struct {
	file  file
	facts Facts
	at    time.Time
}

// holds reports whether the program need not be asked again. now is that of Prober.Now: a program that works
// and has no command features is asked once a minute, not for each pod.
func (a answered) holds(now bool) bool {
	if a.facts.Fault == "" {
		return true
	}
	return time.Since(a.at) < faultLife && (!now || !a.facts.Broken)
}

// file identifies a version of a program's file.
type file struct {
	inode   uint64
	size    int64
	changed time.Time
}

// All asks all programs of a table, at the same time.
func (p *Prober) All(t Table) {
	var all sync.WaitGroup
	for _, h := range t.Handlers {
		all.Go(func() { p.Of(&h) })
	}
	all.Wait()
}

// Of returns the facts of a handler's program, the zero value for berth itself. A fault may be one minute
// old.
func (p *Prober) Of(h *Handler) Facts { return p.of(context.Background(), h, false) }

// Now is Of, but asks a program again that could not be used when it was asked last. When ctx ends first, the facts are Broken.
func (p *Prober) Now(ctx context.Context, h *Handler) Facts { return p.of(ctx, h, true) }

// Check returns an error when pods of the handler cannot run now. Kind Unavailable.
func (p *Prober) Check(ctx context.Context, h *Handler) error {
	_, _, err := p.look(ctx, h, lookTimeout)
	return err
}

func (p *Prober) of(ctx context.Context, h *Handler, now bool) Facts {
	q, fault, _ := p.look(ctx, h, lookTimeout)
	if q == nil {
		return fault
	}
	last, known := p.answer(q.key)
	if known && last.file == q.file && last.holds(now) {
		return last.facts
	}
	timer := time.NewTimer(answersTimeout)
	defer timer.Stop()
	select {
	case answer := <-p.askAgain(q):
		return answer.Val.(Facts)
	case <-ctx.Done():
	case <-timer.C:
	}
	last.facts.Fault, last.facts.Broken = fmt.Sprintf("handler %q: %s has not answered", h.Name, h.Path), true
	return last.facts
}

// Last returns the last facts of a handler's program, and does not wait for it. Where Of would ask the
// program, Last lets it be asked in the background, for a later call.
func (p *Prober) Last(h *Handler) Facts {
	q, fault, _ := p.look(context.Background(), h, glanceTimeout)
	if q == nil {
		return fault
	}
	last, known := p.answer(q.key)
	if known && last.file == q.file && last.holds(false) {
		return last.facts
	}
	p.askAgain(q)
	if !known {
		return Facts{Pending: true}
	}
	return last.facts
}

// question is a version of a handler's program.
type question struct {
	handler *Handler
	key     asked
	file    file
}

// look looks at the file of a handler's program. It returns nil, the facts and the error of a handler whose program is not
// there, or whose file system does not answer: then the facts are the last ones, with the fault. All are zero for a handler
// that has no program.
func (p *Prober) look(ctx context.Context, h *Handler, wait time.Duration) (*question, Facts, error) {
	if !h.hasProgram() {
		return nil, Facts{}, nil
	}
	key := asked{h.Name, h.Path, strings.Join(h.Args, "\x00"), strings.Join(h.Options, "\x00")}
	look := fmt.Sprintf("look at the program of handler %q: %s", h.Name, h.Path)
	found, hung := probe.AskWithin(ctx, &p.looks, wait, look, func() (looked, error) {
		if err := h.Check(); err != nil {
			return looked{err: err}, nil
		}
		info, err := os.Stat(h.Path)
		if err != nil {
			return looked{err: err}, nil
		}
		return looked{file: file{info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime()}}, nil
	})
	var facts Facts
	if hung != nil {
		last, _ := p.answer(key)
		facts = last.facts
		found.err = fmt.Errorf("unable to get OCI runtime: handler %q: %w", h.Name, hung)
	}
	if found.err != nil {
		facts.Fault, facts.Broken = errs.Message(found.err), true
		return nil, facts, found.err
	}
	return &question{h, key, found.file}, Facts{}, nil
}

func (p *Prober) answer(key asked) (last answered, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known = p.known[key]
	return last, known
}

// askAgain asks a program, unless that is under way. The Facts come from the channel, which no one need read.
func (p *Prober) askAgain(q *question) <-chan singleflight.Result {
	return p.asking.DoChan(fmt.Sprintf("%q %v", q.key, q.file), func() (any, error) {
		var facts Facts
		// singleflight would end the process for a panic.
		if err := errs.Guard("the question for the features of handler "+q.key.name, func() error {
			facts = ask(q.handler)
			return nil
		}); err != nil {
			facts = Facts{Fault: err.Error(), Broken: true}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.known == nil {
			p.known = map[asked]answered{}
		}
		p.known[q.key] = answered{q.file, facts, time.Now()}
		return facts, nil
	})
}

// ask runs the program. One without the command features (crun before 1.9) has none that is known.
func ask(h *Handler) Facts {
	if h.Kind == Shim {
		return askShim(h)
	}
	version, err := answer(h, "--version")
	if err != nil {
		return Facts{Fault: fmt.Sprintf("handler %q: %s --version: %v", h.Name, h.Path, err), Broken: true}
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(version), []byte("\n"))
	facts := Facts{Version: strings.ToValidUTF8(fmt.Sprintf("%.200s", line), "?")}
	text, err := answer(h, "features")
	if err == nil {
		err = facts.read(text)
	}
	if err != nil {
		facts.Fault = fmt.Sprintf("handler %q: the features of %s are not known, so it has none: %v", h.Name, h.Path, err)
	}
	return facts
}

// read takes what a program says of its features, as OCI's runtime-spec has it.
func (f *Facts) read(text []byte) error {
	var known features.Features
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	f.RecursiveReadOnly = slices.Contains(known.MountOptions, "rro")
	if linux := known.Linux; linux != nil && slices.Contains(linux.Namespaces, string(specs.UserNamespace)) &&
		linux.MountExtensions != nil && linux.MountExtensions.IDMap != nil && linux.MountExtensions.IDMap.Enabled != nil {
		f.IDMapped = *linux.MountExtensions.IDMap.Enabled
	}
	return nil
}

func answer(h *Handler, question string) ([]byte, error) {
	return run(nil, h.Path, append(slices.Clone(h.Args), question)...)
}

// run returns the output of a program that reads input.
func run(input []byte, path string, args ...string) ([]byte, error) {
	ctx, stop := context.WithTimeout(context.Background(), askTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = bytes.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputTimeout
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}
	var stdout, stderr limited
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer in %v", askTimeout)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		line, _, _ := strings.Cut(strings.TrimSpace(string(stderr.data)), "\n")
		return nil, errors.New(strings.ToValidUTF8(cmp.Or(fmt.Sprintf("%.300s", line), err.Error()), "?"))
	case len(stdout.data) == 0:
		return nil, errors.New("it answers nothing")
	}
	return stdout.data, nil
}

// limited is an output whose end is dropped.
type limited struct{ data []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.data = append(l.data, p[:min(len(p), maxOutput-len(l.data))]...)
	return len(p), nil
}
