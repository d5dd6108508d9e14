package local

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// TestTracedCallsHaveNoSecrets: traces have the commands of a provider's tool without secrets. The output may end
// up in CI logs.
func TestTracedCallsHaveNoSecrets(t *testing.T) {
	got := strings.Join(withoutSecrets([]string{
		"run", "-e", "HTTPS_PROXY=http://me:geheim@proxy:3128", "--env", "A=geheim", "-e", "B", "--label", "x=y",
		"kubeadm", "join", "--token", "abcdef.geheimgeheim0123", "http://me:geheim@registry.example/v2/",
	}), " ")
	const want = "run -e HTTPS_PROXY=… --env A=… -e B=… --label x=y kubeadm join --token abcdef.… http://…@registry.example/v2/"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOpenTracesCalls(t *testing.T) {
	clustertest.InstallPodman(t)
	var calls []string
	engine, err := Open(t.Context(), Options{Trace: func(call string) { calls = append(calls, call) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Exec(t.Context(), "node", provider.Command{Args: []string{"kubeadm", "join", "--token", "abcdef.geheimgeheim0123"}}); err != nil {
		t.Fatal(err)
	}
	const want = "podman exec --privileged node kubeadm join --token abcdef.…"
	if len(calls) == 0 || calls[len(calls)-1] != want {
		t.Errorf("got %q, want %q last", calls, want)
	}
}
