package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
)

// engineArgs returns the arguments of `berth serve` for the engine that opts name, or else
// BERTH_ENGINE; native if neither does.
func engineArgs(t testing.TB, b *Berth, opts Options) []string {
	t.Helper()
	if opts.Docker != nil {
		return b.StartDocker(*opts.Docker)
	}
	switch name := os.Getenv("BERTH_ENGINE"); name {
	case "", "native":
		return nil
	case "docker":
		return b.StartDocker(dockertest.Options{LiveRestore: true, CDIDirs: opts.CDIDirs})
	default:
		t.Fatalf("BERTH_ENGINE=%s: there is no such engine", name)
		return nil
	}
}

// Handled reports whether BERTH_HANDLER names what runs the containers of tests.
func Handled() bool { return os.Getenv("BERTH_HANDLER") != "" }

// defaultHandler returns a configuration in which the OCI runtime or the shim that BERTH_HANDLER names runs all
// containers, "" without that variable, and for a test that has settings of [runtime] or handlers of its own.
func defaultHandler(config string) string {
	program := os.Getenv("BERTH_HANDLER")
	if program == "" || strings.Contains(config, "[runtime]") || strings.Contains(config, "[handlers") {
		return ""
	}
	kind := "oci"
	if strings.HasPrefix(filepath.Base(program), "containerd-shim-") {
		kind = "shim"
	}
	return fmt.Sprintf("\n[runtime]\ndefault_handler = \"test\"\n[handlers.test]\nkind = %q\npath = %q\n", kind, program)
}

// StartDocker starts a Docker engine in the network namespace that stands for the host's, and
// returns the arguments of `berth serve` over it.
func (b *Berth) StartDocker(opts dockertest.Options) []string {
	b.T.Helper()
	opts.NetNS = b.NetNS
	b.Docker = dockertest.Start(b.T, opts)
	return []string{"--engine", "docker", "--docker-endpoint", b.Docker.Endpoint}
}

// ChangeEngine stops the daemon, and starts it with arguments in the place of those for its
// engine.
func (b *Berth) ChangeEngine(args ...string) {
	b.T.Helper()
	b.StopDaemon()
	if at := slices.Index(b.args, "--engine"); at >= 0 {
		b.args = slices.Delete(b.args, at, at+4)
	}
	b.args = append(b.args, args...)
	b.StartDaemon()
}
