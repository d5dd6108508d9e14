// Command page writes docs/doctor-faults.md: the faults that test/integration plants for doctor.
package main

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/test/faults"
)

func main() { fmt.Print(page(faults.Machines())) }

func page(machines []faults.Machine) string {
	var text strings.Builder
	total, repaired := 0, 0
	for _, m := range machines {
		total += len(m.Faults)
		for _, f := range m.Faults {
			if f.Repaired {
				repaired++
			}
		}
	}
	fmt.Fprintf(&text, `# Faults that berth doctor is tested with

A test plants each of these %d faults on a machine, and runs [berth doctor](doctor.md) there before
and after. doctor must find each fault that was planted, and nothing else: the object, the level,
the evidence and the fix are compared. Then the test runs `+"`berth doctor --repair`"+`. It must mend the
%d faults below that say so, and change nothing else: files, mounts, links, nftables, cgroups and
processes are compared.

A machine is a shell in mount, network and PID namespaces of its own. The faults are real: files,
mounts, namespaces, cgroups, links, rules, processes and sockets, and a berth that runs. Only a
value of the kernel that all namespaces share is a file that is mounted over the kernel's.
`+"`TestPlantedFaults`"+` in `+"`test/integration`"+` has a subtest for each row, and `+"`test/faults`"+` has the
commands. Further faults, on machines that are simulated, are in the unit tests of the checks.
`, total, repaired)
	n := 0
	for _, m := range machines {
		text.WriteString("\n## " + strings.ToUpper(m.About[:1]) + m.About[1:] + "\n\n| | fault | check | level | `--repair` |\n|---|---|---|---|---|\n")
		for _, f := range m.Faults {
			n++
			mends := ""
			if f.Repaired {
				mends = "mends it"
			}
			fmt.Fprintf(&text, "| %d | %s | [`%s`](doctor.md#%[3]s) | `%s` | %s |\n", n, f.Name, f.Check, f.Level, mends)
		}
	}
	return text.String()
}
