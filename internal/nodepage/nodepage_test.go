package nodepage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/podusage"
)

// hostile is what a pod may have for a name, or write to its log.
const hostile = "</td><script>alert(1)</script>\x1b[2J\u202e\x00&\""

const secret = "5ec7e7"

// fake is a daemon with one pod. Its fields change what it answers.
type fake struct {
	mu       sync.Mutex
	readings int
	err      error
	logPath  string
	hang     chan struct{}
	events   chan []*runtimeapi.ContainerEventResponse
}

func (f *fake) source() Source {
	return Source{
		Node: "node-1", Instance: "default", Version: "1.2.3", Notices: func() []string { return []string{"refused: " + hostile} },
		Reading: func(ctx context.Context) (*podusage.Reading, error) {
			if f.hang != nil {
				select {
				case <-f.hang:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.readings++
			return &podusage.Reading{
				Pods:       []*runtimeapi.PodSandbox{{Id: "p1", Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: hostile}}},
				Containers: []*runtimeapi.Container{{Id: "c1", PodSandboxId: "p1", Metadata: &runtimeapi.ContainerMetadata{Name: hostile}, State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
			}, f.err
		},
		Jobs: func() []berthapi.Job {
			return []berthapi.Job{{Key: hostile, Kind: "run sandbox", Stage: hostile, WaitsFor: hostile, StageAge: time.Second}}
		},
		Stages: func() []figures.Stage {
			return []figures.Stage{{Job: "run sandbox", Name: "attach network", Count: 3, Median: 0.01, Most: 0.02}}
		},
		Images: func(context.Context) ([]image.Image, error) {
			return []image.Image{{ID: "sha256:1", Size: 5}, {ID: "sha256:2", Tags: []string{hostile}, Size: 7, Pinned: true}}, nil
		},
		Disk: func(context.Context) (image.DiskUsage, error) {
			return image.DiskUsage{Images: []image.Usage{{Mountpoint: "/a", Bytes: 9}}, Containers: []image.Usage{{Mountpoint: "/a", Bytes: 9}, {Mountpoint: "/b"}}}, nil
		},
		LogPath: func(_ context.Context, id string) (string, error) {
			if id != "c1" {
				return "", fmt.Errorf("container %s is unknown: %w", id, errs.NotFound)
			}
			return f.logPath, nil
		},
		Examine: func(context.Context) ([]finding.Finding, error) {
			return []finding.Finding{{ID: "disk", Check: "disk", Level: finding.Warning, Object: hostile, Evidence: hostile, Fix: hostile}}, nil
		},
		Follow: func(ctx context.Context, got func([]*runtimeapi.ContainerEventResponse)) error {
			for {
				select {
				case next, ok := <-f.events:
					if !ok {
						return errs.Unavailable
					}
					got(next)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
	}
}

func newPage(t *testing.T, source Source, a *Access) *Page {
	t.Helper()
	p, err := New(source, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.SetAccess(a)
	return p
}

// ask asks with the token unless a header changes that.
func ask(p *Page, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:9718"+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			r.Host = headers[i+1]
		case headers[i+1] == "":
			r.Header.Del(headers[i])
		default:
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func usual() *Access { return &Access{Token: secret, Hosts: []string{"127.0.0.1", "localhost", "::1"}} }

func privatePaths() []string {
	return []string{"/api/state", "/api/images", "/api/events", "/api/log?container=c1", "/api/findings", "/tables"}
}

func TestWithoutTheTokenNothingIsShown(t *testing.T) {
	p := newPage(t, (&fake{}).source(), usual())
	for _, path := range privatePaths() {
		for _, header := range []string{"", "Bearer ", "Bearer wrong", secret, "Basic bm86bm8=", "Bearer " + secret + "0"} {
			w := ask(p, "GET", path, "Authorization", header)
			if w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "script") {
				t.Errorf("%s with %q: %d %s", path, header, w.Code, w.Body)
			}
			if asks := w.Header().Get("WWW-Authenticate") != ""; asks != (path == "/tables") {
				t.Errorf("%s: the browser asks for a password: %v", path, asks)
			}
		}
	}
	r := httptest.NewRequest("GET", "http://localhost:9718/tables", http.NoBody)
	r.SetBasicAuth("any", secret)
	w := httptest.NewRecorder()
	if p.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("with the token as password: %d", w.Code)
	}
	p.SetAccess(&Access{Hosts: []string{"127.0.0.1"}})
	if w := ask(p, "GET", "/api/state", "Authorization", ""); w.Code != http.StatusOK {
		t.Errorf("a page without a token: %d", w.Code)
	}
	p.SetAccess(nil)
	if w := ask(p, "GET", "/api/state"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a page that is off: %d", w.Code)
	}
}

// A name of somebody else that leads to this address must not make the page part of his site.
func TestOtherNamesAndSites(t *testing.T) {
	p := newPage(t, (&fake{}).source(), usual())
	for host, want := range map[string]int{
		"127.0.0.1:9718": 200, "localhost:1": 200, "[::1]:9718": 200, "LOCALHOST": 200, "[::1]": 200,
		"evil.example:9718": 421, "evil.example": 421, "127.0.0.1.evil.example": 421, "": 421, "127.0.0.1@evil:9718": 421,
	} {
		for _, path := range append(privatePaths()[:1], "/", "/page.js") {
			if w := ask(p, "GET", path, "Host", host); w.Code != want {
				t.Errorf("%s of host %q: %d", path, host, w.Code)
			}
		}
	}
	for site, want := range map[string]int{"same-origin": 200, "none": 200, "cross-site": 403, "same-site": 403, "odd": 403} {
		for _, path := range []string{"/api/state", "/tables"} {
			if w := ask(p, "GET", path, "Sec-Fetch-Site", site); w.Code != want {
				t.Errorf("%s for %s: %d", path, site, w.Code)
			}
		}
	}
	if w := ask(p, "GET", "/api/state", "Origin", "https://evil.example"); w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Error("another site may read the answer")
	}
	p.SetAccess(&Access{Token: secret})
	if w := ask(p, "GET", "/api/state", "Host", "node.example:9718"); w.Code != http.StatusOK {
		t.Errorf("over TLS the certificate has the name: %d", w.Code)
	}
}

func TestOnlyGet(t *testing.T) {
	p := newPage(t, (&fake{}).source(), usual())
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} {
		for _, path := range append(privatePaths(), "/", "/page.js") {
			if w := ask(p, method, path); w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
}

// Every answer, also a refusal, has the headers.
func TestHeaders(t *testing.T) {
	p := newPage(t, (&fake{}).source(), usual())
	for _, path := range append(privatePaths(), "/", "/page.js", "/style.css", "/nonesuch", "/api/nonesuch") {
		for _, token := range []string{"Bearer " + secret, ""} {
			answer := ask(p, "GET", path, "Authorization", token)
			h := answer.Header()
			policy := h.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || strings.Contains(policy, "http") {
				t.Errorf("%s: the policy is %q", path, policy)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Frame-Options") != "DENY" ||
				h.Get("Cache-Control") != "no-store" && answer.Code != http.StatusNotFound { // which has nothing to keep
				t.Errorf("%s: headers %v", path, h)
			}
		}
	}
}

// The page loads nothing from elsewhere, and has no script, style or handler in its markup, which its policy would refuse.
func TestStaticFiles(t *testing.T) {
	err := fs.WalkDir(static, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := static.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(data)
		for _, m := range regexp.MustCompile(`https?://[^\s"'<]*`).FindAllString(text, -1) {
			if m != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", path, m)
			}
		}
		if strings.HasSuffix(path, ".html") && regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script>`).MatchString(text) {
			t.Errorf("%s has a script or a style in its markup", path)
		}
		if strings.HasSuffix(path, ".js") && regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser`).MatchString(text) {
			t.Errorf("%s makes markup of text", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p := newPage(t, (&fake{}).source(), usual())
	for path, kind := range map[string]string{"/": "text/html", "/page.js": "text/javascript", "/style.css": "text/css", "/icon.svg": "image/svg+xml"} {
		if w := ask(p, "GET", path, "Authorization", ""); w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
			t.Errorf("%s: %d, %s", path, w.Code, w.Header().Get("Content-Type"))
		}
	}
	for _, path := range []string{"/static/", "/../nodepage.go", "/%2e%2e/nodepage.go"} {
		if w := ask(p, "GET", path); w.Code == http.StatusOK && strings.Contains(w.Body.String(), "package") {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestHostileText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "0.log")
	line := "2026-01-01T00:00:00.000000000Z stdout F " + strings.ReplaceAll(hostile, "\x00", "") + "\xff\n"
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &fake{logPath: file}
	p := newPage(t, f.source(), usual())
	p.events.add([]*runtimeapi.ContainerEventResponse{{
		ContainerId: "c1", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT,
		PodSandboxStatus:   &runtimeapi.PodSandboxStatus{Id: "p1", Metadata: &runtimeapi.PodSandboxMetadata{Name: hostile}},
		ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: hostile}, Reason: hostile}},
	}})
	for _, path := range privatePaths() {
		w := ask(p, "GET", path)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		body := w.Body.String()
		if strings.Contains(body, "<script") || strings.ContainsAny(body, "\x1b\x00\u202e") {
			t.Errorf("%s: %s", path, body)
		}
		if strings.HasPrefix(path, "/api/") {
			if !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s is no JSON: %s", path, body)
			}
		} else if !strings.Contains(body, "&lt;script&gt;") || !strings.Contains(body, `\x1b[2J\u202e`) || !strings.Contains(body, `<p class="notice">refused: &lt;`) {
			t.Errorf("%s does not show the name: %s", path, body)
		}
	}
}

// decode reads an answer.
func decode[T any](t *testing.T, w *httptest.ResponseRecorder) (value T) {
	t.Helper()
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestState(t *testing.T) {
	f := &fake{}
	p := newPage(t, f.source(), usual())
	p.state.age = time.Hour
	for range 5 {
		state := decode[State](t, ask(p, "GET", "/api/state"))
		if state.Node != "node-1" || len(state.Pods) != 1 || state.Pods[0].Containers[0].State != "running" || state.Pods[0].CPU != podusage.Unknown ||
			len(state.Jobs) != 1 || state.Stages[0].Count != 3 || len(state.Notices) != 1 {
			t.Errorf("got %+v", state)
		}
	}
	if f.readings != 1 {
		t.Errorf("five requests at once read %d times", f.readings)
	}
	images := decode[Images](t, ask(p, "GET", "/api/images"))
	if len(images.Images) != 2 || images.Images[0].ID != "sha256:2" || !images.Images[0].Pinned || len(images.Disk) != 3 || images.Disk[1] != (FileSystem{"/a", "containers", 9, 0}) {
		t.Errorf("got %+v", images)
	}
}

// A reading that fails, or hangs, is an answer with the error; the next one reads again.
func TestFailedReadings(t *testing.T) {
	f := &fake{err: fmt.Errorf("the engine is away: %w", errs.Unavailable)}
	p := newPage(t, f.source(), usual())
	if w := ask(p, "GET", "/api/state"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the engine is away") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.err = nil
	if w := ask(p, "GET", "/api/state"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	source := f.source()
	source.Jobs = func() []berthapi.Job { panic("a fault") }
	p = newPage(t, source, usual())
	for range 2 { // the lock is free again
		if w := ask(p, "GET", "/api/state"); w.Code != http.StatusInternalServerError {
			t.Errorf("after a panic: %d %s", w.Code, w.Body)
		}
	}
}

// Clients that wait for a part that hangs are bounded, and do not keep the static files from others.
func TestHangingReadings(t *testing.T) {
	f := &fake{hang: make(chan struct{})}
	p := newPage(t, f.source(), usual())
	p.state.age = time.Hour
	var waiting sync.WaitGroup
	for range requestsAtOnce {
		waiting.Go(func() { ask(p, "GET", "/api/state") })
	}
	for p.access.busy.Load() < requestsAtOnce {
		time.Sleep(time.Millisecond)
	}
	if w := ask(p, "GET", "/api/state"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one more: %d", w.Code)
	}
	close(f.hang)
	waiting.Wait()
	if n := p.access.busy.Load(); n != 0 || f.readings != 1 {
		t.Errorf("%d requests are under way after %d readings", n, f.readings)
	}
}

func event(kind runtimeapi.ContainerEventType, id string) *runtimeapi.ContainerEventResponse {
	return &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: 9e9,
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "p1", CreatedAt: 1e9, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "n", Name: "pod"}},
		ContainersStatuses: []*runtimeapi.ContainerStatus{{
			Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, CreatedAt: 2e9, StartedAt: 3e9, FinishedAt: 4e9, ExitCode: 3, Reason: "Error",
		}},
	}
}

func TestEvents(t *testing.T) {
	const created, started, stopped, deleted = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	f := &fake{events: make(chan []*runtimeapi.ContainerEventResponse)}
	p := newPage(t, f.source(), usual())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.FollowEvents(ctx)
	}()
	f.events <- []*runtimeapi.ContainerEventResponse{event(created, "p1"), event(created, "c1"), event(started, "c1"), event(stopped, "c1"), event(deleted, "c1")}
	f.events <- nil // the first are kept now
	got := decode[Events](t, ask(p, "GET", "/api/events"))
	var words []string
	for _, e := range got.Events {
		words = append(words, fmt.Sprintf("%d %d %s %s %s %s", e.Number, e.Time.Unix(), e.Kind, e.Pod, e.Container, e.Detail))
	}
	want := "1 1 created n/pod  |2 2 created n/pod app |3 3 started n/pod app |4 4 stopped n/pod app exit code 3, Error|5 9 deleted n/pod app "
	if s := strings.Join(words, "|"); s != want || got.Last != 5 {
		t.Errorf("got %s, last %d", s, got.Last)
	}
	if later := decode[Events](t, ask(p, "GET", "/api/events?after=3")); len(later.Events) != 2 {
		t.Errorf("after 3 there are %+v", later)
	}
	if former := decode[Events](t, ask(p, "GET", "/api/events?after=900")); len(former.Events) != 5 {
		t.Errorf("a client of a former daemon gets %+v", former)
	}
	if w := ask(p, "GET", "/api/events?after=x"); w.Code != http.StatusBadRequest {
		t.Errorf("after=x: %d", w.Code)
	}
	for range 30 {
		var many []*runtimeapi.ContainerEventResponse
		for range 100 {
			many = append(many, event(started, "c1"))
		}
		f.events <- many
	}
	f.events <- nil
	if got := decode[Events](t, ask(p, "GET", "/api/events")); len(got.Events) != keptEvents || got.Last != 3005 {
		t.Errorf("%d events are kept, the last is %d", len(got.Events), got.Last)
	}
	cancel()
	<-ended
}

func logLine(stream, text string) string {
	return "2026-01-01T00:00:00.000000000Z " + stream + " F " + text + "\n"
}

func texts(l *Log) string {
	var all []string
	for _, line := range l.Lines {
		all = append(all, line.Text)
	}
	return strings.Join(all, "|")
}

func TestLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "0.log")
	p := newPage(t, (&fake{logPath: file}).source(), usual())
	if w := ask(p, "GET", "/api/log?container=c1"); w.Code != http.StatusNotFound {
		t.Errorf("no file: %d %s", w.Code, w.Body)
	}
	write := func(flags int, text string) {
		t.Helper()
		out, err := os.OpenFile(file, flags|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := io.WriteString(out, text); err != nil {
			t.Fatal(err)
		}
	}
	read := func(cursor string) *Log {
		t.Helper()
		got := decode[Log](t, ask(p, "GET", "/api/log?container=c1&from="+cursor))
		return &got
	}
	var first strings.Builder
	for i := range logTailLines + 5 {
		first.WriteString(logLine("stdout", fmt.Sprint(i)))
	}
	write(0, first.String())
	log := read("")
	if len(log.Lines) != logTailLines || log.Lines[0].Text != "5" || log.More || log.Again {
		t.Errorf("the end of the log is %d lines from %q", len(log.Lines), log.Lines[0].Text)
	}
	write(os.O_APPEND, logLine("stderr", "next")+"2026-01-01T00:00:00.000000000Z stdout F ha")
	log = read(log.Cursor)
	if texts(log) != "next" || !log.Lines[0].Error {
		t.Errorf("then come %q", texts(log))
	}
	write(os.O_APPEND, "lf\n")
	if log = read(log.Cursor); texts(log) != "half" {
		t.Errorf("then come %q", texts(log))
	}
	if log = read(log.Cursor); len(log.Lines) != 0 {
		t.Errorf("then come %q", texts(log))
	}
	write(os.O_TRUNC, logLine("stdout", "emptied"))
	if log = read(log.Cursor); texts(log) != "emptied" || !log.Again {
		t.Errorf("of an emptied log come %q", texts(log))
	}
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	write(0, logLine("stdout", "rotated"))
	if log = read(log.Cursor); texts(log) != "rotated" || !log.Again {
		t.Errorf("of a rotated log come %q", texts(log))
	}
	for _, cursor := range []string{"x", "1-2:-5", "1-2:x", ":"} {
		if w := ask(p, "GET", "/api/log?container=c1&from="+cursor); w.Code != http.StatusBadRequest {
			t.Errorf("cursor %q: %d", cursor, w.Code)
		}
	}
	for query, want := range map[string]int{"": 400, "container=": 400, "container=../../etc/passwd": 404} {
		if w := ask(p, "GET", "/api/log?"+query); w.Code != want {
			t.Errorf("%q: %d", query, w.Code)
		}
	}
}

// One answer is bounded, and the next ones have the rest. A file that is no log ends, too.
func TestLargeLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "0.log")
	p := newPage(t, (&fake{logPath: file}).source(), usual())
	long := strings.Repeat("x", 16000)
	var all strings.Builder
	for range 100 {
		all.WriteString(logLine("stdout", long))
	}
	for _, content := range []string{all.String(), strings.Repeat("y", 3*logBytes), strings.Repeat("\n", 3*logBytes)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		cursor, lines, answers := identityOf(info)+":0", 0, 0
		for more := true; more && answers < 100; answers++ {
			w := ask(p, "GET", "/api/log?container=c1&from="+cursor)
			if w.Body.Len() > 2*logBytes {
				t.Fatalf("an answer has %d bytes", w.Body.Len())
			}
			log := decode[Log](t, w)
			for _, line := range log.Lines {
				if len(line.Text) != lineBytes {
					t.Fatalf("a line has %d bytes", len(line.Text))
				}
			}
			lines += len(log.Lines)
			more = log.More || log.Cursor != cursor
			cursor = log.Cursor
		}
		if want := strings.Count(content, "stdout"); lines != want || answers > 20 {
			t.Errorf("%d lines in %d answers, want %d", lines, answers, want)
		}
	}
}

// A path that somebody has replaced is not followed, and does not hold up the daemon.
func TestLogThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, "/dev/zero"} {
		p := newPage(t, (&fake{logPath: path}).source(), usual())
		if w := ask(p, "GET", "/api/log?container=c1"); w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "root:") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadToken(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a token: %v", err)
	}
	one, err := MakeToken(dir)
	if err != nil || len(one) != 2*tokenBytes {
		t.Fatalf("%q, %v", one, err)
	}
	info, err := os.Stat(filepath.Join(dir, tokenFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", info, err)
	}
	if again, err := MakeToken(dir); err != nil || again != one {
		t.Errorf("%q, %v: a restart of the daemon changes the token", again, err)
	}
	if other, err := MakeToken(t.TempDir()); err != nil || other == one {
		t.Errorf("%q, %v: two daemons have one token", other, err)
	}
	for _, damaged := range []string{"", "short", strings.Repeat("z", 2*tokenBytes)} {
		if err := os.WriteFile(filepath.Join(dir, tokenFile), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := MakeToken(dir); err == nil {
			t.Errorf("a damaged file gives the token %q", token)
		}
	}
}
