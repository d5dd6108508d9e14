package nodepage

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/printable"
)

// doctorTime bounds an examination.
const doctorTime = 2 * time.Minute

// Findings is the answer of /api/findings: those of the last examination. All text in it is printable.
type Findings struct {
	// Running: an examination is under way.
	Running bool `json:"running"`
	// Ended is when the last one ended, zero for none so far; Took is how long it took.
	Ended time.Time     `json:"ended,omitzero"`
	Took  time.Duration `json:"took,omitempty"`
	// Findings are the problems first, then the warnings. Error is why there are none.
	Findings []finding.Finding `json:"findings"`
	Error    string            `json:"error,omitempty"`
}

// examination is the last one, and the one under way. It outlives the request that has asked for it: a browser asks again
// for the result. The zero value is ready.
type examination struct {
	mu     sync.Mutex
	last   Findings
	closed bool
	// stop ends the one under way; nil for none.
	stop    context.CancelFunc
	running sync.WaitGroup
}

func (p *Page) answerFindings(r *http.Request) (any, error) { return p.findings(r), nil }

// findings begins an examination with ?examine=1, unless one is under way. Nothing else does: it takes processor time.
func (p *Page) findings(r *http.Request) Findings {
	if r.URL.Query().Get("examine") == "1" {
		p.doctor.begin(context.WithoutCancel(r.Context()), p.source.Examine)
	}
	p.doctor.mu.Lock()
	defer p.doctor.mu.Unlock()
	answer := p.doctor.last
	answer.Running = p.doctor.stop != nil
	if answer.Findings == nil {
		answer.Findings = []finding.Finding{}
	}
	return answer
}

// begin begins an examination in the background.
func (e *examination) begin(ctx context.Context, examine func(context.Context) ([]finding.Finding, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.stop != nil {
		return
	}
	ctx, e.stop = context.WithTimeout(ctx, doctorTime)
	e.running.Go(func() {
		begun := time.Now()
		var found []finding.Finding
		err := errs.Guard("examination for the node page", func() (err error) {
			found, err = examine(ctx)
			return err
		})
		result := Findings{Ended: time.Now(), Took: time.Since(begun), Findings: shownFindings(found)}
		if err != nil {
			result.Error = printable.Text(errs.Message(err))
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stop()
		e.last, e.stop = result, nil
	})
}

// close ends the examination under way. No other one begins.
func (e *examination) close() {
	e.mu.Lock()
	e.closed = true
	if e.stop != nil {
		e.stop()
	}
	e.mu.Unlock()
	e.running.Wait()
}

// shownFindings are findings as the page shows them: the worst first, and checks that had nothing to examine last.
func shownFindings(found []finding.Finding) []finding.Finding {
	all := []finding.Finding{}
	for _, level := range []finding.Level{finding.Problem, finding.Warning, finding.OK} {
		for _, f := range found {
			if f.Level == level && f.Skipped == "" {
				all = append(all, f)
			}
		}
	}
	for _, f := range found {
		if f.Skipped != "" {
			all = append(all, f)
		}
	}
	for i := range all {
		f := &all[i]
		for _, text := range []*string{&f.ID, &f.Check, &f.Object, &f.Evidence, &f.Fix, &f.Skipped, &f.Docs, &f.Repair} {
			*text = printable.Text(*text)
		}
	}
	return all
}

// Close ends what the page does in the background.
func (p *Page) Close() { p.doctor.close() }
