package images

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
)

// TestRegistryIsAlone: commands that change the registry run one at a time. status changes nothing.
func TestRegistryIsAlone(t *testing.T) {
	clustertest.InstallPodman(t)
	call := func(args ...string) error {
		cmd := NewRegistry()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		return cmd.ExecuteContext(t.Context())
	}
	cmd := NewRegistry()
	cmd.SetContext(t.Context())
	engine, err := (&session.ProviderFlags{}).Open(cmd)
	if err != nil {
		t.Fatal(err)
	}
	release, err := local.Lock(engine, plan.RegistryGroup)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"start", "stop", "delete"} {
		if err := call(verb); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "another berth command is changing the registry") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if err := call("status"); !errors.Is(err, errs.NotFound) {
		t.Errorf("status: %v", err)
	}
	release()
	if err := call("delete"); err != nil {
		t.Errorf("delete: %v", err)
	}
}
