//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/harness"
)

const repository = "../.."

// reader is a person at a host with an instance, whose directories of pods are the test's.
type reader struct {
	*harness.Berth
	bin string
}

// asBerth is `berth` with the directories of the test.
const asBerth = `#!/bin/sh
if [ "$1" = pod ]; then
  shift
  set -- pod --volume-dir @DIR@/volumes --log-dir @DIR@/logs --claim-dir @DIR@/claims "$@"
fi
exec @BIN@/berth "$@"
`

func newReader(t *testing.T) reader {
	t.Helper()
	b := harness.Start(t, harness.Options{NoImages: true})
	bin, err := filepath.Abs(b.Bin)
	must(t, err)
	r := reader{b, t.TempDir()}
	text := strings.NewReplacer("@DIR@", b.Dir, "@BIN@", bin).Replace(asBerth)
	must(t, os.WriteFile(filepath.Join(r.bin, "berth"), []byte(text), 0o755))
	return r
}

// terminal is a shell in the repository, on the instance's host.
func (r reader) terminal() *scripts.Shell {
	r.T.Helper()
	cmd := r.InHost("bash", "-c", scripts.Reader)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT=unix://"+r.Socket, "PATH="+r.bin+":"+os.Getenv("PATH"))
	return scripts.Open(r.T, cmd, time.Minute)
}

// ready waits until pods are listed as ready with all of their containers.
func (r reader) ready(sh *scripts.Shell, containers string, names ...string) {
	r.T.Helper()
	r.Await("ready pods", func() bool {
		out, _ := sh.Try("berth pod ls")
		for _, name := range names {
			if !regexp.MustCompile("/" + name + ` +ready +` + containers + " ").MatchString(out) {
				return false
			}
		}
		return true
	})
}

// TestHelloPodPage types the part of docs/start/pod.md that runs examples/hello-pod.yaml.
func TestHelloPodPage(t *testing.T) {
	require.Binary(t, "curl")
	r := newReader(t)
	first, second := r.terminal(), r.terminal()
	page := scripts.Page(t, repository, "docs/start/pod.md", "Run the pod", nil)
	page.Lines(first, 1)
	run := page.Begin(first)
	r.ready(second, "2/2", "hello")
	out := page.All(second)
	for line, want := range map[string]string{
		"curl http://127.0.0.1:18080/":      "hello from berth, pod hello",
		"berth pod logs hello -c visitor":   "", // it waits two seconds after a request before the server listens
		"berth pod exec hello -c web -- ps": "serve",
		"berth pod stats hello":             "hello",
		"berth pod ls":                      "default/hello",
	} {
		if got := out.Of(t, line); !strings.Contains(got, want) {
			t.Errorf("%s does not say %q:\n%s", line, want, got)
		}
	}
	if output, _ := run.Interrupt(); !strings.Contains(output, "web | stopped") {
		t.Errorf("Ctrl-C does not stop the web server:\n%s", output)
	}
	scripts.Page(t, repository, "docs/start/pod.md", "Clean up", nil).All(first)
	wantNothing(t, r.Berth)
}

// TestWebAppTutorial types docs/tutorials/web-app.md, which runs examples/web-app.yaml.
func TestWebAppTutorial(t *testing.T) {
	r := newReader(t)
	claim := filepath.Join(r.Dir, "claims/default_data")
	first, second := r.terminal(), r.terminal()
	page := scripts.Page(t, repository, "docs/tutorials/web-app.md", "", []scripts.Row{
		{Line: "rm -rf /var/lib/berth-claims/default_data", Run: "test -f " + claim + "/note && rm -rf " + claim, Why: "the directories are the test's"},
	})
	page.Lines(first, 1)
	run := page.Begin(first)
	r.ready(second, "1/1", "web-0", "web-1")
	out := page.Block(second)
	if got := out.Of(t, "berth pod exec web-0 -- sh -c 'cat /etc/app/greeting; ls /data'"); !strings.Contains(got, "hello from the web app") {
		t.Errorf("the setting is %q", got)
	}
	page.Block(second)
	run.Interrupt()
	run = first.Begin("berth pod run -f examples/web-app.yaml")
	r.ready(second, "1/1", "web-0", "web-1")
	out = page.Block(second)
	if got := out.Of(t, "berth pod exec web-1 -- cat /data/note"); got != "kept\n" {
		t.Errorf("the note is %q", got)
	}
	page.Block(second)
	forward := page.Begin(second)
	const ask = "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q ' 200 ' <&3"
	r.Await("the forwarded port", func() bool { return r.InHost("bash", "-c", ask).Run() == nil })
	forward.Interrupt()
	run.Interrupt()
	page.All(first)
	wantNothing(t, r.Berth)
}
