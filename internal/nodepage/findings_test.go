package nodepage

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/finding"
)

// awaitFindings asks until no examination is under way.
func awaitFindings(t *testing.T, p *Page) Findings {
	t.Helper()
	p.doctor.running.Wait()
	got := decode[Findings](t, ask(p, "GET", "/api/findings"))
	if got.Running {
		t.Error("the examination has ended, and the answer says that it runs")
	}
	return got
}

// A machine is examined only on request, once for all who ask meanwhile, and its problems come first.
func TestFindings(t *testing.T) {
	source := (&fake{}).source()
	begun, release := make(chan struct{}, 10), make(chan struct{})
	source.Examine = func(context.Context) ([]finding.Finding, error) {
		begun <- struct{}{}
		<-release
		return []finding.Finding{
			{ID: "a", Level: finding.OK}, {ID: "b", Level: finding.OK, Skipped: "no b"}, {ID: "c", Level: finding.Warning, Evidence: hostile}, {ID: "d", Level: finding.Problem}, {ID: "e", Level: finding.OK},
		}, nil
	}
	p := newPage(t, source, usual())
	if got := decode[Findings](t, ask(p, "GET", "/api/findings")); got.Running || !got.Ended.IsZero() || len(begun) != 0 {
		t.Errorf("without a request: %+v, %d examinations", got, len(begun))
	}
	for range 3 {
		if got := decode[Findings](t, ask(p, "GET", "/api/findings?examine=1")); !got.Running {
			t.Errorf("on request: %+v", got)
		}
	}
	<-begun
	close(release)
	got := awaitFindings(t, p)
	var order strings.Builder
	for _, f := range got.Findings {
		order.WriteString(f.ID)
	}
	if order.String() != "dcaeb" || got.Ended.IsZero() || got.Error != "" || len(begun) != 0 {
		t.Errorf("got %+v in the order %s, %d more examinations", got, order.String(), len(begun))
	}
	if text := got.Findings[1].Evidence; strings.ContainsAny(text, "\x1b\x00\u202e") {
		t.Errorf("the evidence is %q", text)
	}
	if ask(p, "GET", "/api/findings?examine=1"); len(awaitFindings(t, p).Findings) != 5 || len(begun) != 1 {
		t.Error("a second request does not examine again")
	}
	if w := ask(p, "GET", "/api/findings?examine=1", "Authorization", ""); w.Code != http.StatusUnauthorized || len(begun) != 1 {
		t.Errorf("without a token: %d, %d examinations", w.Code, len(begun))
	}
}

// TestFindingsInTables: the page without scripts begins an examination on request alone, and shows its findings as text.
func TestFindingsInTables(t *testing.T) {
	source := (&fake{}).source()
	begun, release := make(chan struct{}, 10), make(chan struct{})
	source.Examine = func(context.Context) ([]finding.Finding, error) {
		begun <- struct{}{}
		<-release
		return []finding.Finding{{Level: finding.OK, Skipped: "unseen"}, {Level: finding.Problem, Object: "<b>o</b>", Fix: "mend it"}}, nil
	}
	p := newPage(t, source, usual())
	shows := func(path, text string) {
		t.Helper()
		if got := ask(p, "GET", path).Body.String(); !strings.Contains(got, text) {
			t.Errorf("%s lacks %q: %s", path, text, got)
		}
	}
	shows("/tables", "Not examined yet")
	if len(begun) != 0 {
		t.Error("it examines without a request")
	}
	shows("/tables?examine=1", "under way")
	<-begun
	close(release)
	awaitFindings(t, p)
	shows("/tables", "Examined at ")
	shows("/tables", "<td>problem</td><td></td><td>&lt;b&gt;o&lt;/b&gt;</td><td></td><td>mend it</td>")
	if got := ask(p, "GET", "/tables").Body.String(); strings.Contains(got, "unseen") {
		t.Errorf("a check that had nothing to examine is shown: %s", got)
	}
}

// An examination that fails or panics is an answer with the error. One under way ends with the page.
func TestFailedExamination(t *testing.T) {
	source := (&fake{}).source()
	examine := func(context.Context) ([]finding.Finding, error) { return nil, errors.New("berth doctor is away") }
	source.Examine = func(ctx context.Context) ([]finding.Finding, error) { return examine(ctx) }
	p := newPage(t, source, usual())
	ask(p, "GET", "/api/findings?examine=1")
	if got := awaitFindings(t, p); got.Error != "berth doctor is away" || got.Findings == nil {
		t.Errorf("got %+v", got)
	}
	examine = func(context.Context) ([]finding.Finding, error) { panic("a fault") }
	ask(p, "GET", "/api/findings?examine=1")
	if got := awaitFindings(t, p); !strings.Contains(got.Error, "a fault") {
		t.Errorf("got %+v", got)
	}
	examine = func(ctx context.Context) ([]finding.Finding, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ask(p, "GET", "/api/findings?examine=1")
	p.Close()
	if got := awaitFindings(t, p); got.Error == "" {
		t.Errorf("got %+v", got)
	}
	if got := decode[Findings](t, ask(p, "GET", "/api/findings?examine=1")); got.Running {
		t.Error("a page that is closed examines")
	}
}
