package crictl

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
)

// absent are the verbs of crictl that are not here, and what has their place on a node.
func absent() map[string]string {
	const creates = "the kubelet and `berth pod run` create pods"
	return map[string]string{
		"runp": creates, "create": creates, "run": creates,
		"update":                "the kubelet changes limits",
		"checkpoint":            "the kubelet's checkpoint API has it",
		"config":                "edit /etc/crictl.yaml",
		"metricsp":              "`crictl statsp` shows usage, and the kubelet serves metrics",
		"metricdescs":           "the kubelet serves metrics",
		"runtime-config":        "`crictl info` shows the runtime's configuration",
		"update-runtime-config": "the kubelet sends the pod CIDR",
	}
}

// addAbsent adds commands that fail with the reason.
func addAbsent(root *cobra.Command) {
	for name, instead := range absent() {
		root.AddCommand(&cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return fmt.Errorf("berth under the name crictl has no verb %s: %s; the program of cri-tools has it: %w", name, instead, errs.Unsupported)
			},
		})
	}
}
