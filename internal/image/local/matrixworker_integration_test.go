//go:build integration

package local

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
)

const damageWorkerArg = "damage-worker"

// workerJob is what a worker does to a damaged store: it opens it, looks at what it serves, checks
// and repairs it, pulls what is lost, and opens it again.
type workerJob struct {
	Root, State string
	Helper      program.Command
	// Want are the files of each image by its name.
	Want map[string]map[string]string
	// Env is the environment in the config of each image.
	Env string
}

// workerReport is what it has seen.
type workerReport struct {
	// Failed is why the store could not be opened, Wrong what must never happen.
	Failed string
	Wrong  []string
	// Logged and Faults are what the start has reported.
	Logged, Faults []string
	// Refused are the images whose export has failed: what is damaged of them is fetched in the background from then on.
	Refused []string
	// Opened, Repaired and Pulled are the images that are served whole after each of these steps.
	Opened, Repaired, Pulled []string
	// Found, Left are the problems that the checks have found, and those without repair.
	Found, Left []string
	// Again is what is said after the next start.
	Again []string
}

// lines is the log of a store, of level warn and above.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(bytes.TrimSpace(p)))
	return len(p), nil
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.all = nil }()
	return l.all
}

// damageWorker is the process of one case. The job is on its standard input.
func damageWorker() {
	var job workerJob
	if err := json.NewDecoder(os.Stdin).Decode(&job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	w := &damageCheck{workerJob: job}
	w.run(context.Background())
	if err := json.NewEncoder(os.Stdout).Encode(w.report); err != nil {
		os.Exit(1)
	}
}

type damageCheck struct {
	workerJob
	report workerReport
	log    lines
	s      *Images
}

func (w *damageCheck) wrong(format string, args ...any) {
	w.report.Wrong = append(w.report.Wrong, fmt.Sprintf(format, args...))
}

func (w *damageCheck) open(ctx context.Context) bool {
	var err error
	w.s, err = Open(ctx, Config{
		Root: w.Root, State: w.State, UnpackHelper: w.Helper, CgroupParent: "/berth-image-test",
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		w.report.Failed = err.Error()
		return false
	}
	return true
}

func (w *damageCheck) run(ctx context.Context) {
	if !w.open(ctx) {
		return
	}
	w.report.Logged, w.report.Faults = w.log.take(), slices.Concat(w.s.Faults(), w.s.SetAside())
	w.report.Opened = w.served(ctx, "opening")
	w.exports(ctx)
	for _, repair := range []bool{false, true, false} {
		report, err := w.s.Check(ctx, repair, nil)
		if err != nil {
			w.wrong("check: %v", err)
			return
		}
		w.report.Left = nil
		for _, d := range report.Damage {
			text := fmt.Sprintf("%s: %s", d.Object, d.Problem)
			if !repair && !slices.Contains(w.report.Found, text) {
				w.report.Found = append(w.report.Found, text)
			}
			if !d.Repaired {
				w.report.Left = append(w.report.Left, text)
				if d.Advice == "" {
					w.wrong("damage without advice: %s", text)
				}
			}
		}
	}
	if _, err := w.s.DiskUse(ctx); err != nil {
		w.wrong("disk use: %v", err)
	}
	w.report.Repaired = w.served(ctx, "the check")
	for name := range w.Want {
		if slices.Contains(w.report.Repaired, name) {
			continue
		}
		if _, err := w.s.Pull(ctx, name, image.Auth{}, nil); err != nil {
			w.wrong("pull of %s: %v", name, err)
		}
	}
	w.report.Pulled = w.served(ctx, "the pull")
	if err := w.s.Close(); err != nil {
		w.wrong("close: %v", err)
	}
	w.log.take()
	if w.open(ctx) {
		w.report.Again = w.log.take()
		if again := w.served(ctx, "the next start"); len(again) < len(w.report.Pulled) {
			w.wrong("after the next start only %v are served", again)
		}
		if err := w.s.Close(); err != nil {
			w.wrong("second close: %v", err)
		}
	}
}

// served returns the images that a container can be made of. What it sees must be right once layers were repaired.
func (w *damageCheck) served(ctx context.Context, after string) []string {
	var all []string
	for name, want := range w.Want {
		problem := w.look(ctx, name, want)
		switch {
		case problem == "":
			all = append(all, name)
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			w.wrong("%s hangs after %s", name, after)
		case strings.HasPrefix(problem, "wrong: ") && after != "opening":
			w.report.Left = append(w.report.Left, fmt.Sprintf("%s after %s: %s", name, after, problem))
		}
	}
	slices.Sort(all)
	return all
}

func (w *damageCheck) look(ctx context.Context, name string, want map[string]string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	img, err := w.s.Get(ctx, name)
	if err != nil {
		if !errors.Is(err, errs.NotFound) {
			w.wrong("%s: %v", name, err)
		}
		return err.Error()
	}
	if !slices.Equal(img.Config.Env, []string{w.Env}) {
		w.wrong("%s has the environment %q", name, img.Config.Env)
	}
	if config, err := w.s.Details(ctx, name); err == nil && !slices.Equal(config.Config.Env, []string{w.Env}) {
		w.wrong("%s has the config %+v", name, config.Config)
	}
	m, err := w.s.Prepare(ctx, image.RootfsSpec{Key: "look", ImageID: img.ID})
	if err != nil {
		return err.Error()
	}
	got, err := listing(m.Path)
	err = errors.Join(err, w.s.Release(ctx, "look"))
	if err != nil {
		return err.Error()
	}
	if diff := firstDifference(got, want); diff != "" {
		return "wrong: " + diff
	}
	return ""
}

// exports looks at the archives of all images: an export fails, or has the right bytes.
func (w *damageCheck) exports(ctx context.Context) {
	for name := range w.Want {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		var archive bytes.Buffer
		err := w.s.Export(ctx, []string{name}, &archive)
		if ctx.Err() != nil {
			w.wrong("the export of %s hangs", name)
		}
		cancel()
		if err != nil {
			w.report.Refused = append(w.report.Refused, name)
			continue
		}
		for r := tar.NewReader(&archive); ; {
			head, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				w.wrong("the export of %s: %v", name, err)
				break
			}
			data, err := io.ReadAll(r)
			blob, ok := strings.CutPrefix(head.Name, "blobs/sha256/")
			if ok && blob != "" && (err != nil || digest.FromBytes(data).Encoded() != filepath.Base(blob)) {
				w.wrong("the export of %s has wrong bytes as %s: %v", name, blob, err)
			}
		}
	}
}
