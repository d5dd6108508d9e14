package harness

import (
	"os"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
)

// engineArgs returns the arguments of `berth serve` for the engine that BERTH_ENGINE names,
// native if it is not set. For docker it starts a Docker engine in the network namespace that
// stands for the host's. That ends after the berth of the test.
func engineArgs(t testing.TB, b *Berth) []string {
	t.Helper()
	switch name := os.Getenv("BERTH_ENGINE"); name {
	case "", "native":
		return nil
	case "docker":
		b.Docker = dockertest.Start(t, dockertest.Options{NetNS: b.NetNS, LiveRestore: true})
		return []string{"--engine", "docker", "--docker-endpoint", b.Docker.Endpoint}
	default:
		t.Fatalf("BERTH_ENGINE=%s: there is no such engine", name)
		return nil
	}
}
