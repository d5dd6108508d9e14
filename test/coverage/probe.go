package main

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

// probeTimeout is far longer than any probe takes.
const probeTimeout = 10 * time.Second

// probeAll runs the probes of this machine and returns the output of those that failed.
func probeAll(all []ability) map[string]string {
	missing := map[string]string{}
	for _, a := range all {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		out, err := exec.CommandContext(ctx, "sh", "-c", a.probe).CombinedOutput()
		cancel()
		if err != nil {
			missing[a.name] = strings.Join(append(strings.Fields(string(out)), "("+err.Error()+")"), " ")
		}
	}
	return missing
}
