//go:build integration && e2e

package nodepage

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/test/harness/browser"
)

// gate stands before a page, and has faults by path: "" lets the request through, "drop" ends the connection, "hang" does
// not answer, and all else is an answer with status 503 and this text.
type gate struct {
	page *Page

	mu     sync.Mutex
	faults map[string]string
	// changed is closed when the faults change: what hangs ends.
	changed chan struct{}
}

// set sets the faults.
func (g *gate) set(faults map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = faults
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	fault, changed := g.faults[r.URL.Path], g.changed
	if all, ok := g.faults["*"]; ok {
		fault = all
	}
	g.mu.Unlock()
	switch fault {
	case "":
		g.page.ServeHTTP(w, r)
	case "drop":
		panic(http.ErrAbortHandler)
	case "hang":
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	default:
		http.Error(w, fault, http.StatusServiceUnavailable)
	}
}

// TestPageOfADaemonThatIsAway: the page always says what it waits for, keeps what it has shown, and reads on when the
// daemon answers again.
func TestPageOfADaemonThatIsAway(t *testing.T) {
	source := (&fake{}).source()
	source.Examine = func(context.Context) ([]finding.Finding, error) { return nil, errors.New("doctor is away") }
	page := newPage(t, source, usual())
	page.state.age, page.images.age = 0, 0
	g := &gate{page: page, changed: make(chan struct{})}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	t.Cleanup(func() { g.set(nil) }) // first: the server waits for what hangs
	x := browser.Start(t, func(name string, args ...string) *exec.Cmd { return exec.CommandContext(t.Context(), name, args...) },
		func(address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(t.Context(), "tcp", address)
		})
	status := func(what, class, text string) {
		t.Helper()
		x.Await(what, `document.getElementById("status")?.className === "`+class+`" && document.getElementById("status").textContent.includes("`+text+`")`)
	}
	rows := func() {
		t.Helper()
		for table, want := range map[string]string{"pods": "2", "images": "2"} {
			if got := x.Eval(`document.querySelectorAll("#` + table + `-table tbody tr").length`); got != want {
				t.Errorf("the page has %s rows of %s, want %s", got, table, want)
			}
		}
	}

	g.set(map[string]string{"/page.js": "drop"})
	x.Go(server.URL + "/#token=" + secret)
	x.Await("the advice to load the page again", `document.getElementById("stuck") !== null && getComputedStyle(document.getElementById("stuck")).visibility === "visible"`)
	g.set(map[string]string{"/api/state": "hang"})
	x.Eval("location.reload()")
	status("the page to say that it waits", "bad", "waiting for the daemon, which has not answered so far")
	if x.Eval(`document.getElementById("status").textContent.includes("old")`) == "true" {
		t.Error("the page says that what is shown is old, and shows nothing")
	}
	g.set(map[string]string{"/api/state": "too many requests at once"})
	status("the text of an answer that is not JSON", "bad", "the daemon does not answer (too many requests at once)")
	g.set(map[string]string{"/api/images": "drop", "/api/events": "drop"})
	status("the state though other parts are away", "good", "")
	x.Await("the notice", `document.getElementById("notices").textContent.startsWith("refused: </td><script>")`)
	x.Await("the parts to say that they are away", `["images-count", "events-status"].every((id) => document.getElementById(id).textContent.startsWith("cannot be read now: "))`)
	g.set(nil)
	x.Await("the parts", `document.getElementById("events-status").textContent === "" && document.querySelectorAll("#images-table tbody tr").length === 2`)
	g.set(map[string]string{"*": "drop"})
	status("the daemon to be away", "bad", "what is shown is old; trying again")
	rows()
	g.set(nil)
	status("the daemon to be back", "good", "")
	rows()

	g.set(map[string]string{"/api/findings": "drop"})
	x.Eval(`document.getElementById("examine").click()`)
	x.Await("the failure of the request", `document.getElementById("doctor-status").textContent.startsWith("cannot be read now: ")`)
	g.set(nil)
	x.Await("the button", `!document.getElementById("examine").disabled`)
	x.Eval(`document.getElementById("examine").click()`)
	x.Await("the failure of the examination", `document.getElementById("doctor-status").textContent === "the examination failed: doctor is away"`)

	page.SetAccess(&Access{Token: strings.Repeat("ab", 4), Hosts: []string{"127.0.0.1"}})
	status("the question for the token", "bad", "the token is wrong")
	x.Eval(`location.hash = "#token=` + strings.Repeat("ab", 4) + `"`)
	status("the page with the new token", "good", "")
	if got := x.Eval("location.hash"); got != "" {
		t.Errorf("the address still has the token: %s", got)
	}
	x.Await("the page, and no question", `document.getElementById("ask").hidden && !document.getElementById("main").hidden`)
}

// TestPageAsksForTheToken: without a token the page asks for it, and calls none wrong that nobody has entered.
func TestPageAsksForTheToken(t *testing.T) {
	server := httptest.NewServer(newPage(t, (&fake{}).source(), usual()))
	t.Cleanup(server.Close)
	x := browser.Start(t, func(name string, args ...string) *exec.Cmd { return exec.CommandContext(t.Context(), name, args...) },
		func(address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(t.Context(), "tcp", address)
		})
	asks := func(class, text string) {
		t.Helper()
		x.Await("the question for the token", `document.getElementById("ask")?.hidden === false && document.getElementById("main").hidden &&
			document.getElementById("status").className === "`+class+`" && document.getElementById("status").textContent.startsWith("`+text+`")`)
	}
	enter := func(token string) {
		x.Eval(`document.getElementById("token").value = "` + token + `"; document.getElementById("ask").requestSubmit()`)
	}
	x.Go(server.URL)
	asks("", "the page needs the token")
	enter("0000")
	asks("bad", "the token is wrong")
	enter(" ")
	asks("", "the page needs the token")
	enter(secret)
	x.Await("the page", `document.getElementById("ask").hidden && !document.getElementById("main").hidden && document.getElementById("status").className === "good"`)
}
