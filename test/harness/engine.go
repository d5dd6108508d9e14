package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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

// isGVisor reports whether BERTH_HANDLER names gVisor's shim.
func isGVisor() bool { return filepath.Base(os.Getenv("BERTH_HANDLER")) == gvisorShim }

const gvisorShim = "containerd-shim-runsc-v1"

// defaultHandler returns a configuration in which the OCI runtime or the shim that BERTH_HANDLER names runs all
// containers, "" without that variable, and for a test that has settings of [runtime] or handlers of its own.
// Settings that the handler needs are in files of dir.
func defaultHandler(t testing.TB, config, dir string) string {
	t.Helper()
	program := os.Getenv("BERTH_HANDLER")
	if program == "" || strings.Contains(config, "[runtime]") || strings.Contains(config, "[handlers") {
		return ""
	}
	text := fmt.Sprintf("[handlers.test]\nkind = \"oci\"\npath = %q\n", program)
	switch {
	case isGVisor():
		text = GVisorHandler(t, "test", program, "systrap", dir)
	case strings.HasPrefix(filepath.Base(program), "containerd-shim-"):
		text = fmt.Sprintf("[handlers.test]\nkind = \"shim\"\npath = %q\n", program)
	}
	return "\n[runtime]\ndefault_handler = \"test\"\n" + text
}

// GVisorHandler returns the configuration of a handler with gVisor's shim, which has the program runsc beside it. The
// shim's own configuration is a file of dir.
func GVisorHandler(t testing.TB, name, shim, platform, dir string) string {
	t.Helper()
	config := filepath.Join(dir, "runsc-"+platform+".toml")
	text := fmt.Sprintf("binary_name = %q\n[runsc_config]\nplatform = %q\n", filepath.Join(filepath.Dir(shim), "runsc"), platform)
	must(t, os.WriteFile(config, []byte(text), 0o600))
	return fmt.Sprintf("[handlers.%s]\nkind = \"shim\"\npath = %q\nsandbox = \"runtime\"\n"+
		"options = [\"TypeUrl=io.containerd.runsc.v1.options\", \"ConfigPath=%s\"]\n", name, shim, config)
}

// gvisorState is where gVisor's shim has the state of its containers.
const gvisorState = "/run/containerd/runsc/berth"

// EndedInGVisor reports whether the init of a container in gVisor has exited. berth is not asked.
func (b *Berth) EndedInGVisor(container string) bool {
	b.T.Helper()
	runsc := filepath.Join(filepath.Dir(os.Getenv("BERTH_HANDLER")), "runsc")
	out, err := exec.Command(runsc, "-root", gvisorState, "state", container).Output()
	if err != nil {
		return true // its sandbox is not there any more
	}
	var state struct{ Status string }
	must(b.T, json.Unmarshal(out, &state))
	return state.Status == "stopped"
}

// clearGVisor removes the files that runsc keeps of containers of this instance that were not started.
func (b *Berth) clearGVisor() {
	b.T.Helper()
	log, err := os.ReadFile(b.logFile.Name())
	must(b.T, err)
	entries, _ := os.ReadDir(gvisorState)
	for _, entry := range entries { // CONTAINER_sandbox:SANDBOX.lock
		_, rest, found := strings.Cut(entry.Name(), "_sandbox:")
		sandbox, _, _ := strings.Cut(rest, ".")
		if found && sandbox != "" && bytes.Contains(log, []byte(sandbox)) {
			must(b.T, os.Remove(filepath.Join(gvisorState, entry.Name())))
		}
	}
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

// ChangeArgs stops the daemon, and starts it with further arguments. The last one of a flag counts.
func (b *Berth) ChangeArgs(args ...string) {
	b.T.Helper()
	b.StopDaemon()
	b.args = append(b.args, args...)
	b.StartDaemon()
}
