//go:build integration

package cri_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berthrun/berth/pkg/cri"
	"github.com/berthrun/berth/test/harness"
)

// inExample is set in the process that runs the example.
const inExample = "BERTH_TEST_EXAMPLE"

// TestExampleAgainstBerth runs the example of the documentation as it is, with the default endpoint, against a berth
// with one pod. In the mount namespace of the example the endpoint is the socket of that berth.
func TestExampleAgainstBerth(t *testing.T) {
	if os.Getenv(inExample) != "" {
		Example()
		return
	}
	b := harness.Start(t, harness.Options{NoImages: true})
	config := b.Sandbox("listed")
	b.RunSandbox(config)
	path := strings.TrimPrefix(cri.DefaultEndpoint, "unix://")
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-euc",
		`mount -t tmpfs none /run; mkdir -p "${2%/*}"; ln -s "$1" "$2"; exec "$0" -test.run '^TestExampleAgainstBerth$'`,
		os.Args[0], b.Socket, path)
	cmd.Env = append(os.Environ(), inExample+"=1")
	out, err := cmd.CombinedOutput()
	want := fmt.Sprintln(config.GetMetadata().GetNamespace(), config.GetMetadata().GetName(), "SANDBOX_READY")
	if err != nil || !strings.HasPrefix(string(out), want) || strings.Count(string(out), "SANDBOX_") != 1 {
		t.Errorf("the example ends with %v and prints\n%s\nwant\n%s", err, out, want)
	}
}
