//go:build integration

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/nodepage"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
)

// pageListen is the address of the page in the instance's own network namespace.
const pageListen = "127.0.0.1:9718"

// dialInHost connects to an address in the instance's host namespace.
func dialInHost(b *harness.Berth) func(address string) (net.Conn, error) {
	return func(address string) (conn net.Conn, err error) {
		err = sysns.InNetNS("/run/netns/"+b.NetNS, func() (err error) {
			conn, err = new(net.Dialer).DialContext(b.Ctx(), "tcp", address)
			return err
		})
		return conn, err
	}
}

// askPage asks the page, and decodes an answer with status 200 into value.
func askPage(b *harness.Berth, path, token string, value any) int {
	b.T.Helper()
	dial := func(_ context.Context, _, address string) (net.Conn, error) { return dialInHost(b)(address) }
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(b.Ctx(), http.MethodGet, "http://"+pageListen+path, http.NoBody)
	if err != nil {
		b.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.T.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK && value != nil {
		if err := json.Unmarshal(body, value); err != nil {
			b.T.Fatalf("%s: %v: %s", path, err, body)
		}
	}
	return resp.StatusCode
}

// pageToken is the token in the address that `berth page` prints.
func pageToken(b *harness.Berth) string {
	b.T.Helper()
	address := strings.TrimSpace(b.MustCLI("page"))
	u, err := url.Parse(address)
	token, ok := strings.CutPrefix(u.Fragment, "token=")
	if err != nil || u.Scheme != "http" || u.Host != pageListen || !ok || len(token) != 64 {
		b.T.Fatalf("the address is %q, %v", address, err)
	}
	return token
}

// examinedOnPage has the page examine the machine.
func examinedOnPage(b *harness.Berth, token string) (found nodepage.Findings) {
	b.T.Helper()
	if code := askPage(b, "/api/findings?examine=1", token, &found); code != http.StatusOK || !found.Running {
		b.T.Errorf("%d: %+v", code, found)
	}
	b.Await("the end of the examination", func() bool {
		return askPage(b, "/api/findings", token, &found) == http.StatusOK && !found.Running
	})
	return found
}

// TestNodePage: what the page shows of a real daemon, who may see it, and that a reload turns it off and on.
func TestNodePage(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[page]\nlisten = '" + pageListen + "'\n"})
	token := pageToken(b)
	pod := b.RunPod("web", "echo '<b>from the log</b>'; echo to stderr >&2; exec sleep 1000")

	var state nodepage.State
	if code := askPage(b, "/api/state", token, &state); code != http.StatusOK || len(state.Pods) != 1 ||
		state.Pods[0].Name != "web" || !state.Pods[0].Ready || len(state.Pods[0].Containers) != 1 || state.Pods[0].Containers[0].State != "running" {
		t.Errorf("%d: %+v", code, state)
	}
	stages := map[string]bool{}
	for _, s := range state.Stages {
		stages[s.Job] = stages[s.Job] || s.Count > 0 && s.Most >= s.Median
	}
	for _, job := range []string{"run sandbox", "create container", "start container"} {
		if !stages[job] {
			t.Errorf("there are no times of the job %s in %+v", job, state.Stages)
		}
	}
	var images nodepage.Images
	if code := askPage(b, "/api/images", token, &images); code != http.StatusOK || len(images.Images) == 0 || len(images.Disk) == 0 {
		t.Errorf("%d: %+v", code, images)
	}
	b.Await("the events", func() bool {
		var events nodepage.Events
		if askPage(b, "/api/events", token, &events) != http.StatusOK {
			return false
		}
		text := fmt.Sprint(events.Events)
		return strings.Contains(text, "created default/web") && strings.Contains(text, "started default/web")
	})
	b.Await("the log", func() bool {
		var log nodepage.Log
		code := askPage(b, "/api/log?container="+pod.Container, token, &log)
		return code == http.StatusOK && len(log.Lines) == 2 && log.Lines[0].Text == "<b>from the log</b>" && log.Lines[1].Error
	})
	if code := askPage(b, "/api/state", strings.Repeat("0", 64), nil); code != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", code)
	}
	if code := askPage(b, "/", "", nil); code != http.StatusOK {
		t.Errorf("the page itself: %d", code)
	}
	findings := examinedOnPage(b, token)
	if findings.Error != "" || len(findings.Findings) < 20 {
		t.Errorf("doctor on the page: %+v", findings)
	}

	reload := func(config string, served bool) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(b.Dir, "berth.toml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(b.DaemonPid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		b.Await("the reload", func() bool { return (askPage(b, "/", "", nil) == http.StatusOK) == served })
	}
	reload("", false)
	if _, errOut, err := b.CLI("page"); err == nil || !strings.Contains(errOut, "page.listen") {
		t.Errorf("berth page of a page that is off: %v %s", err, errOut)
	}
	reload("[page]\nlisten = '"+pageListen+"'\n", true)
	// A configuration with a certificate that does not exist is refused, and the page stays where it is.
	reload("[page]\nlisten = '192.0.2.1:9719'\ntls_cert_file = '/none.crt'\ntls_key_file = '/none.key'\n", true)
	b.Await("the log to have the refused reload", func() bool {
		return strings.Contains(b.LogTail(), "cannot reload the configuration") && strings.Contains(b.LogTail(), "berth.toml:3: page.tls_cert_file")
	})
	if out, errOut, err := b.CLI("page"); err != nil || !strings.Contains(out, "http://"+pageListen+"/#token=") ||
		!strings.Contains(errOut, "warning: the last reload of the configuration was refused at ") || !strings.Contains(errOut, "/none.crt") {
		t.Errorf("berth page of a page that is served as before: %v %s %s", err, out, errOut)
	}
	b.Await("the notice on the page", func() bool {
		return askPage(b, "/api/state", token, &state) == http.StatusOK && len(state.Notices) == 1 && strings.Contains(state.Notices[0], "/none.crt")
	})
	if code := askPage(b, "/api/state", token, nil); code != http.StatusOK {
		t.Errorf("after two reloads the token is another: %d", code)
	}

	log, err := os.ReadFile(filepath.Join(b.Dir, "berth.log"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(log, []byte(token)) {
		t.Error("the daemon's log has the token")
	}
}
