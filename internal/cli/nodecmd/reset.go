package nodecmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/engine"
)

// newReset makes the machine what it was before the first apply.
func newReset() *cobra.Command {
	var b backing
	var disrupt bool
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Make the machine what it was before the first apply",
		Long: "reset stops and removes what apply brought, and brings back what was there before: files with their content,\n" +
			"units, packages, settings. What the runtime made by itself (images, containers) goes, too, where nothing was\n" +
			"before; logs stay.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				back, err := s.engine.PlanReset(ctx)
				if err != nil {
					return err
				}
				if _, ok := s.engine.Journal().Last(); !ok {
					fmt.Fprintln(cmd.ErrOrStderr(), "berth has not changed this machine.")
					return s.engine.Journal().Erase()
				}
				stopPods, err := podsThatStop(ctx, s.host.Files(), back, disrupt)
				if err != nil {
					return err
				}
				if err := b.consent(cmd, back, "Reset?"); err != nil {
					return err
				}
				for _, endpoint := range stopPods {
					if err := crisock.RemoveSandboxes(ctx, endpoint); err != nil {
						return err
					}
				}
				out, err := s.engine.Reset(ctx, back)
				return b.tell(cmd, s, out, err)
			})
		},
	}
	b.register(cmd, false)
	cmd.Flags().BoolVar(&disrupt, "allow-disruption", false, "stop and remove the pods of a runtime that goes")
	return cmd
}

// podsThatStop returns the endpoints of runtimes that the reset stops and that have
// sandboxes. Without consent they are an error.
func podsThatStop(ctx context.Context, files provision.Files, back *engine.Back, consent bool) ([]string, error) {
	var list, pods []string
	for _, d := range back.Diffs {
		name, isService := strings.CutSuffix(d.Object.Name, ".service")
		if d.Object.Kind != "unit" || !isService || !d.Stops() {
			continue
		}
		socket := crisock.Configured(files, name)
		if socket == "" {
			continue // no runtime
		}
		if _, err := files.Stat(socket); err != nil {
			continue
		}
		names, err := crisock.Sandboxes(ctx, socket)
		if err != nil || len(names) == 0 {
			continue // one that does not answer has no pods that could be stopped in order
		}
		list, pods = append(list, socket), append(pods, names...)
	}
	if len(pods) > 0 && !consent {
		return nil, fmt.Errorf("nothing was changed: %d pods run (%s); --allow-disruption stops and removes them: %w",
			len(pods), strings.Join(pods[:min(len(pods), 5)], ", "), errs.State)
	}
	return list, nil
}
