package session

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// TestVerboseEngineHidesSecrets: the flags select an engine, and its commands are printed without
// secrets.
func TestVerboseEngineHidesSecrets(t *testing.T) {
	clustertest.InstallPodman(t)
	var shown bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetErr(&shown)
	engine, err := (&ProviderFlags{verbose: 1}).Open(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Exec(t.Context(), "node", provider.Command{Args: []string{"kubeadm", "join", "--token", "abcdef.geheimgeheim0123"}}); err != nil {
		t.Fatal(err)
	}
	if got := shown.String(); strings.Contains(got, "geheim") || !strings.Contains(got, "+ podman exec --privileged node kubeadm join --token abcdef.…\n") {
		t.Errorf("-v shows\n%s", got)
	}
}
