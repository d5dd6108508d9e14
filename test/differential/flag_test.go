//go:build integration

package differential

import (
	"os/exec"
	"strings"
)

// known drops flags that the supervisor does not have yet.
func known(flags []string) []string {
	out, _ := exec.Command(supervisorProgram(), "serve", "-h").CombinedOutput()
	if !strings.Contains(string(out), "-own-init") {
		return nil
	}
	return flags
}
