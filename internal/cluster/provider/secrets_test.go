package provider

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/cluster/provider/command"
)

// listening records the standard input of a tool.
type listening struct {
	*fake
	mu    sync.Mutex
	given []string
}

func (l *listening) Run(ctx context.Context, c command.Call) error {
	if c.Stdin != nil {
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.given = append(l.given, string(text))
		l.mu.Unlock()
	}
	return l.fake.Run(ctx, c)
}

// TestProxyPasswords: passwords are on no command line, because every user of the host can read
// those.
func TestProxyPasswords(t *testing.T) {
	for _, tool := range []string{"podman", "docker", "nerdctl"} {
		f := newFake()
		e := engine(t, tool, f)
		l := &listening{fake: f}
		e.run = l
		e.env = map[string]string{"HTTPS_PROXY": "http://me:geheim@proxy:3128", "http_proxy": "http://open:3128"}
		if err := e.Create(t.Context(), request(t, e)); err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(f.calls, "\n"); strings.Contains(all, "geheim") || !strings.Contains(all, "-e HTTP_PROXY=http://open:3128") || !strings.Contains(all, "--env-file /dev/stdin") {
			t.Errorf("%s: %s", tool, all)
		}
		const want = "HTTPS_PROXY=http://me:geheim@proxy:3128\nhttps_proxy=http://me:geheim@proxy:3128\n"
		if len(l.given) != 4 || slices.ContainsFunc(l.given, func(text string) bool { return text != want }) {
			t.Errorf("%s: given %q", tool, l.given)
		}
	}
}
