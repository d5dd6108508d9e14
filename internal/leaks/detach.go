package leaks

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/network/cni"
)

// examineDetach reports attachments whose CNI DEL has failed, by their records: berth repeats it, and the pods are not
// removed until it succeeds.
func examineDetach(_ context.Context, f *Facts, r *doctor.Report) error {
	for _, dir := range []string{"cni", "former"} {
		pending, err := cni.ReadPending(filepath.Join(f.Root, "network", dir))
		if err != nil {
			return err
		}
		for _, p := range pending {
			pod := strings.Trim(p.Namespace+"/"+p.Name, "/")
			r.Add(finding.Problem, p.SandboxID, fmt.Sprintf("the pod %s cannot be detached from its network, and keeps its addresses and host ports: %s (%s)", pod, strings.Join(strings.Fields(p.Fault), " "), p.File),
				"remove what the error names: correct the CNI configuration under the same network name, or install the plugin; while berth runs, it repeats DEL within 5 minutes")
		}
	}
	return nil
}
