package clustertest

import (
	"os"
	"path/filepath"
	"testing"
)

// InstallPodman makes a podman that has neither containers nor networks the only engine of the
// test. It returns the directory that the program is in, which is HOME, too.
func InstallPodman(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in\n--version) echo podman version 4.3.1 ;;\ninfo*) echo '{\"host\":{\"cgroupVersion\":\"v2\"},\"store\":{\"graphRoot\":\"" + dir + "\"}}' ;;\n\"network inspect\"*) echo 'Error: network not found' >&2; exit 125 ;;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "podman")
	t.Setenv("HOME", dir)
	return dir
}
