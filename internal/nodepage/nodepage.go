// Package nodepage serves a page about the node, for people: pods and what they use, jobs, logs, events, how long the stages
// of starts take, images and disk, and on request what a doctor finds. It only reads.
//
// It gets what it shows from the daemon's parts through Source, and owns who may see it: guard.go has the rules. What pods
// have chosen (names, log lines) is untrusted: it leaves the server as printable text, and the page shows it as text.
package nodepage

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/podusage"
)

// Source is what the page shows. Calls return soon after their context has ended.
type Source struct {
	// Node, Instance and Version name what the page is about.
	Node, Instance, Version string
	// Reading returns pods and containers with their figures.
	Reading func(ctx context.Context) (*podusage.Reading, error)
	// Jobs returns the running jobs, the oldest first, Stages how long stages took since the daemon's start.
	Jobs   func() []berthapi.Job
	Stages func() []figures.Stage
	// Notices returns what a person at the node must know, a sentence each. Nil: nothing.
	Notices func() []string
	// Images and Disk are those of the image store.
	Images func(ctx context.Context) ([]image.Image, error)
	Disk   func(ctx context.Context) (image.DiskUsage, error)
	// LogPath returns the log file of a container; NotFound for one that does not exist or has no log.
	LogPath func(ctx context.Context, container string) (string, error)
	// Follow calls got with the events of pods and containers, the present state first, until ctx ends, which is an error.
	Follow func(ctx context.Context, got func([]*runtimeapi.ContainerEventResponse)) error
	// Examine returns what a doctor says of the node. It may take a while.
	Examine func(ctx context.Context) ([]finding.Finding, error)
}

// Page is the handler of the page.
type Page struct {
	source Source
	log    *slog.Logger
	access access
	events eventRing
	state  shared[State]
	images shared[Images]
	doctor examination
	// before is for the rates of the next state; its lock guards it.
	before *timed
	// reading counts the logs that are read now.
	reading atomic.Int64
	mux     *http.ServeMux
}

type timed struct {
	at      time.Time
	reading *podusage.Reading
}

// How old an answer may be. Clients that ask at the same time share one.
const (
	stateAge  = time.Second
	imagesAge = 10 * time.Second
)

//go:embed static
var static embed.FS

// New makes the page. It answers nobody before SetAccess is called.
func New(source Source, log *slog.Logger) (*Page, error) {
	p := &Page{source: source, log: log, mux: http.NewServeMux()}
	p.state = newShared(stateAge, p.readState)
	p.images = newShared(imagesAge, p.readImages)
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	// The page itself has nothing of the node; what it asks for needs the token.
	p.mux.Handle("GET /", p.guarded(public, http.FileServerFS(files)))
	for path, answer := range map[string]func(*http.Request) (any, error){
		"/api/state":    func(r *http.Request) (any, error) { return p.state.get(r.Context()) },
		"/api/images":   func(r *http.Request) (any, error) { return p.images.get(r.Context()) },
		"/api/events":   p.answerEvents,
		"/api/log":      p.answerLog,
		"/api/findings": p.answerFindings,
	} {
		p.mux.Handle("GET "+path, p.guarded(private, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, answer) })))
	}
	p.mux.Handle("GET /tables", p.guarded(prompted, http.HandlerFunc(p.serveTables)))
	return p, nil
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// FollowEvents keeps the last events for the page until ctx ends.
func (p *Page) FollowEvents(ctx context.Context) {
	for ctx.Err() == nil {
		// A follower that was too slow, or comes before the daemon is ready, begins again.
		err := errs.Guard("following of events for the node page", func() error { return p.source.Follow(ctx, p.events.add) })
		if ctx.Err() == nil {
			p.log.Debug("the node page follows events again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// answer writes an answer as JSON, or its error with the status of its kind.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, of func(*http.Request) (any, error)) {
	var value any
	err := errs.Guard("answering the node page", func() (err error) {
		value, err = of(r)
		return err
	})
	status := http.StatusOK
	if err != nil {
		status, value = statusOf(err), map[string]string{"error": errs.Message(err)}
	}
	body, err := json.Marshal(value)
	if err != nil {
		p.log.Error("cannot encode an answer of the node page", "path", r.URL.Path, "error", err)
		http.Error(w, "cannot encode the answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		p.log.Debug("a client of the node page has left", "error", err)
	}
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errs.NotFound):
		return http.StatusNotFound
	case errors.Is(err, errs.Invalid):
		return http.StatusBadRequest
	case errors.Is(err, errs.Unavailable), errors.Is(err, errs.Exhausted), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
