// Package browser runs a headless Chromium for tests, and drives it by its DevTools protocol.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/berthrun/berth/internal/require"
)

// Browser is one tab. What the page reports as an error or a warning (an exception, a violation of its policy, a request
// that failed) is kept in Faults.
type Browser struct {
	t    testing.TB
	conn *websocket.Conn
	tab  string // the session of the tab

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	faults  []string
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start starts Chromium. inside makes the command that runs it, for example in a network namespace, and connect connects to
// an address there. The test is skipped without Chromium.
func Start(t testing.TB, inside func(name string, args ...string) *exec.Cmd, connect func(address string) (net.Conn, error)) *Browser {
	t.Helper()
	program := require.Binary(t, "chromium")
	cmd := inside(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
		"--user-data-dir="+t.TempDir(), "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Chromium makes a directory for a socket, and leaves it when it is killed. The path of a socket is short.
	temporary, err := os.MkdirTemp("", "berth-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(temporary)) })
	cmd.Env = append(cmd.Environ(), "TMPDIR="+temporary)
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its children, too
		_ = cmd.Wait()
	})
	address := ""
	lines := bufio.NewScanner(stderr)
	for address == "" && lines.Scan() {
		_, address, _ = strings.Cut(lines.Text(), "DevTools listening on ")
	}
	if address == "" {
		t.Fatal("Chromium has ended without an address for its DevTools")
	}
	go func() {
		for lines.Scan() { // it must not wait for a reader
			_ = lines.Text()
		}
	}()
	b := &Browser{t: t, answers: map[int]chan message{}}
	dialer := websocket.Dialer{NetDial: func(_, address string) (net.Conn, error) { return connect(address) }, ReadBufferSize: 1 << 16}
	b.conn, _, err = dialer.Dial(address, nil)
	must(t, err)
	b.conn.SetReadLimit(64 << 20)
	go b.receive()
	t.Cleanup(func() { b.conn.Close() })
	b.open()
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *Browser) receive() {
	for {
		var m message
		if err := b.conn.ReadJSON(&m); err != nil {
			return
		}
		b.mu.Lock()
		if answer := b.answers[m.ID]; m.ID != 0 && answer != nil {
			delete(b.answers, m.ID)
			answer <- m
		}
		switch m.Method {
		case "Runtime.exceptionThrown":
			b.faults = append(b.faults, string(m.Params))
		case "Log.entryAdded":
			if text := string(m.Params); strings.Contains(text, `"level":"error"`) || strings.Contains(text, `"level":"warning"`) {
				b.faults = append(b.faults, text)
			}
		}
		b.mu.Unlock()
	}
}

// call calls a method of the protocol.
func (b *Browser) call(session, method string, params any) json.RawMessage {
	b.t.Helper()
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.answers[id] = answer
	err := b.conn.WriteJSON(map[string]any{"id": id, "sessionId": session, "method": method, "params": params})
	b.mu.Unlock()
	must(b.t, err)
	select {
	case m := <-answer:
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		return m.Result
	case <-time.After(require.Patience(time.Minute)):
		b.t.Fatalf("%s: the browser does not answer", method)
	}
	return nil
}

// open attaches to a new tab.
func (b *Browser) open() {
	b.t.Helper()
	var target struct{ TargetID string }
	must(b.t, json.Unmarshal(b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}), &target))
	var session struct{ SessionID string }
	must(b.t, json.Unmarshal(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &session))
	b.tab = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(b.tab, domain+".enable", map[string]any{})
	}
}

// Go opens an address, and waits until the document has all of its elements.
func (b *Browser) Go(address string) {
	b.t.Helper()
	b.call(b.tab, "Page.navigate", map[string]any{"url": address})
	b.Await("the document of "+address, `document.readyState !== "loading"`)
}

// Scripts turns the scripts of pages on or off.
func (b *Browser) Scripts(on bool) {
	b.t.Helper()
	b.call(b.tab, "Emulation.setScriptExecutionDisabled", map[string]any{"value": !on})
}

// Size changes the size of the tab. A phone has a screen of its own kind.
func (b *Browser) Size(width, height int, phone bool) {
	b.t.Helper()
	b.call(b.tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone})
}

// Scheme chooses "light" or "dark".
func (b *Browser) Scheme(name string) {
	b.t.Helper()
	b.call(b.tab, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}})
}

// Key presses a key: "Tab", "Enter", "Escape".
func (b *Browser) Key(name string) {
	b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}
	event := map[string]any{"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
	if name == "Enter" {
		event["text"] = "\r"
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		event["type"] = kind
		b.call(b.tab, "Input.dispatchKeyEvent", event)
	}
}

// Eval runs a script in the page and returns its value as text.
func (b *Browser) Eval(script string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	must(b.t, json.Unmarshal(b.call(b.tab, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true}), &out))
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", script, out.ExceptionDetails)
	}
	return fmt.Sprint(out.Result.Value)
}

// Await waits until a script's value is true.
func (b *Browser) Await(what, script string) {
	b.t.Helper()
	deadline := time.Now().Add(require.Patience(time.Minute))
	for b.Eval(script) != "true" {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited for %s; the page shows:\n%s\nfaults: %s", what, b.Eval("document.body.innerText"), b.Faults())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Picture writes what the tab shows into a PNG file.
func (b *Browser) Picture(file string) {
	b.t.Helper()
	var out struct{ Data string }
	must(b.t, json.Unmarshal(b.call(b.tab, "Page.captureScreenshot", map[string]any{"format": "png"}), &out))
	data, err := base64.StdEncoding.DecodeString(out.Data)
	must(b.t, err)
	must(b.t, os.WriteFile(file, data, 0o644))
}

// Faults are what the page has reported so far.
func (b *Browser) Faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.faults...)
}
