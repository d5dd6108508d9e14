// Package doctorcmd is `berth doctor`: it examines this machine, and what berth has on it.
package doctorcmd

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/leaks"
	machine "github.com/berthrun/berth/internal/provision/doctor"
	"github.com/berthrun/berth/internal/sys/sysquota"
)

// New returns the command. register adds the flags of berth's configuration, and load reads it.
func New(register func(*cobra.Command), load func(*cobra.Command) (Configuration, error)) *cobra.Command {
	var output show.Flag
	var wanted []string
	var list, repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose this machine and berth on it: each problem with its evidence and its fix",
		Long: "doctor examines the kernel, cgroups, security modules, sysctls, networks, registries, disks, other runtimes, the kubelet's\n" +
			"configuration against berth's, and what berth has left on the machine without a record. The exit code is 1 if it finds a\n" +
			"problem; warnings are none. It changes nothing without --repair. Then it removes what its findings say, and nothing else:\n" +
			"pods that start or end meanwhile are not touched. --list shows the checks; docs/doctor.md describes them.\n" +
			"For another berth, give its --endpoint while it runs; else the flags of its `berth serve`.",
		Example: "  berth doctor\n  berth doctor --check disk,network\n  berth doctor --endpoint unix:///run/berth2/berth.sock -o json\n  berth doctor --repair",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return printChecks(cmd.OutOrStdout(), checks())
			}
			if err := doctor.CheckIDs(wanted, checks()); err != nil {
				return err
			}
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			found, err := examine(cmd, cfg, wanted, repair)
			if err != nil {
				return err
			}
			all := doctor.Findings(found)
			err = output.Print(cmd.OutOrStdout(), all, func(w io.Writer) error { return show.Findings(w, all) })
			failed := slices.ContainsFunc(all, func(f finding.Finding) bool { return f.Unrepaired != "" })
			if err == nil && (failed || finding.HasProblem(all)) {
				err = exitcode.Of(1)
			}
			return err
		},
	}
	register(cmd)
	output.Register(cmd)
	cmd.Flags().StringSliceVar(&wanted, "check", nil, "run only the checks with these IDs, comma separated")
	cmd.Flags().BoolVar(&repair, "repair", false, "remove the leaks whose findings say so")
	cmd.Flags().BoolVar(&list, "list", false, "list the checks, and run none")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("check", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var ids []string
		for _, info := range checks() {
			ids = append(ids, info.ID)
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	})
	cmd.AddCommand(newReference())
	return cmd
}

// examine runs the wanted checks, all of them where none is named, and repairs what they find.
func examine(cmd *cobra.Command, cfg Configuration, wanted []string, repair bool) (found []doctor.Found, err error) {
	at := session.Flags{Root: "/"}
	s, err := at.Open(cmd)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ctx := cmd.Context()
	facts := machine.New(ctx, s.Host, machine.Options{Berth: cfg.Berth(), Space: machine.SpaceOf, CanLimit: sysquota.CanLimit, Dial: machine.Dial, HostNet: daemon.HostNet})
	kubeadm := machine.WithKubeadm(s.Host) || slices.Contains(wanted, "kubeadm")
	found = doctor.Examine(ctx, facts, doctor.Select(slices.Concat(machine.OfNode(kubeadm), machine.OfHost()), wanted))

	left := leaks.New(cfg.leftovers())
	defer func() { err = errors.Join(err, left.Close()) }()
	found = append(found, doctor.ExamineAtOnce(ctx, left, doctor.Select(slices.Concat(leaks.RecordChecks(), leaks.Checks()), wanted))...)
	if repair && ctx.Err() == nil {
		doctor.Repair(ctx, found, func(f finding.Finding) {
			if f.Repaired {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: done: %s\n", f.ID, f.Repair)
			} else {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: not done: %s: %s\n", f.ID, f.Repair, f.Unrepaired)
			}
		})
	}
	return found, ctx.Err()
}

// checks describe the checks of `berth doctor`.
func checks() []doctor.Info {
	return slices.Concat(doctor.Infos(machine.OfNode(true)), doctor.Infos(machine.OfHost()), doctor.Infos(leaks.RecordChecks()), doctor.Infos(leaks.Checks()))
}

func printChecks(w io.Writer, all []doctor.Info) error {
	var rows [][]string
	for _, info := range all {
		rows = append(rows, []string{info.ID, info.Title})
	}
	if err := show.Table(w, []string{"CHECK", "WHAT IT EXAMINES"}, rows); err != nil {
		return fmt.Errorf("cannot print the checks: %w", err)
	}
	return nil
}
