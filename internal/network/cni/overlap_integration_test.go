//go:build integration

package cni_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestOverlapOfTheHost: the log names file, range, link and address of a range that overlaps the host, when the
// configuration comes into use, at a restart, and not again meanwhile.
func TestOverlapOfTheHost(t *testing.T) {
	l := newLab(t)
	l.run(l.host, "ip", "addr", "add", "10.9.0.5/32", "dev", "lo")
	l.write("conf/10-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local",
		"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]}}]}`, 0o644)
	want := "file=" + l.path("conf", "10-x.conflist") + ` range=10.9.0.0/24 overlaps="10.9.0.5, an address of the host on link lo"`
	for _, start := range []string{"first start", "restart"} {
		var log bytes.Buffer
		cfg := l.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		n := l.open(cfg)
		for range 2 {
			n.Info()
		}
		n.Close()
		if strings.Count(log.String(), want) != 1 || strings.Contains(log.String(), "fd00:9::") {
			t.Errorf("%s: want once %s, got\n%s", start, want, log.String())
		}
	}
}
