// Package render is `berth node render`, which renders a node file for a machine that does not
// exist yet.
package render

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/berthrun/berth/internal/provision/node/nodefile"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/privatefile"
	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/render"
)

// rendering is one run of render.
type renderRun struct {
	target, output      string
	distribution, arch  string
	runtimeVersion      string
	nvidiaCTK           string
	nodePath            string
	berth, supervisor   render.Fetched
	allowSecrets        bool
	selinux, selinuxSet bool
}

// New returns `berth node render`.
func New() *cobra.Command {
	r := renderRun{}
	cmd := &cobra.Command{
		Use:   "render [FILE]",
		Short: "Write a node file as cloud-init user data, Ignition, a tree of files or a script",
		Long: "render changes no machine; flags describe the machine that the output is for. It reports on standard error what\n" +
			"the form cannot express, each by name with the reason.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.selinuxSet = cmd.Flags().Changed("selinux")
			return r.run(cmd, append(args, nodefile.DefaultFile)[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.target, "target", "", "cloud-init, ignition, dir or script")
	flags.StringVarP(&r.output, "output", "o", "-", "file to write, for its owner only, or directory to make; - is standard output")
	flags.StringVar(&r.distribution, "distribution", "", "distribution and version of the machine: debian:12, flatcar, …")
	flags.StringVar(&r.arch, "arch", runtime.GOARCH, "architecture of the machine")
	flags.StringVar(&r.runtimeVersion, "runtime-version", "", "version of the runtime that the machine brings")
	flags.BoolVar(&r.selinux, "selinux", false, "whether the machine runs SELinux; default: as the distribution does")
	flags.StringVar(&r.nvidiaCTK, "nvidia-ctk", "", "path of nvidia-ctk on the machine; empty: none")
	flags.StringVar(&r.nodePath, "node-file", nodefile.DefaultFile, "where the node file goes on the machine; empty leaves it out")
	flags.StringVar(&r.berth.Source, "berth", "", "URL from which the machine downloads berth; empty: the machine has berth")
	flags.StringVar(&r.berth.Digest, "berth-digest", "", "digest of --berth: sha256:…")
	flags.StringVar(&r.supervisor.Source, "supervisor", "", "URL from which the machine downloads berth-supervisor; empty: the machine has it")
	flags.StringVar(&r.supervisor.Digest, "supervisor-digest", "", "digest of --supervisor: sha256:…")
	flags.BoolVar(&r.allowSecrets, "allow-secrets", false, "write credentials also to output that others may read: user data, standard output")
	return cmd
}

// targets are the forms by name.
func targets() map[string]func(render.Input) (render.Output, error) {
	return map[string]func(render.Input) (render.Output, error){
		"cloud-init": render.CloudInit, "ignition": render.Ignition, "dir": render.Dir, "script": render.Script,
	}
}

func (r *renderRun) run(cmd *cobra.Command, file string) error {
	write, ok := targets()[r.target]
	if !ok {
		return fmt.Errorf("--target %q: want cloud-init, ignition, dir or script: %w", r.target, errs.Invalid)
	}
	if r.target == "dir" && r.output == "-" {
		return fmt.Errorf("--target dir writes a directory; name it by --output: %w", errs.Invalid)
	}
	n, text, err := source.Load(cmd.Context(), file, "", cmd.InOrStdin())
	if err != nil {
		return err
	}
	facts, programs, err := r.facts(n)
	if err != nil {
		return nodefile.Locate(err, source.Shown(file), text)
	}
	target, err := node.Build(n, facts)
	if err != nil {
		return nodefile.Locate(err, source.Shown(file), text)
	}
	if !facts.Distro.Tested {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: berth's table has no %s; using the nearest release\n", facts.Distro.Name)
	}
	out, err := write(render.Input{
		Target: target, Distro: facts.Distro, Arch: facts.Arch, Node: text, NodePath: r.nodePath,
		Programs: programs, Berth: r.berth, Credentials: facts.Credentials,
	})
	if err != nil {
		return fmt.Errorf("cannot render %s as %s: %w", source.Shown(file), r.target, err)
	}
	if err := r.guard(out.Secrets); err != nil {
		return err
	}
	for _, left := range out.Left {
		fmt.Fprintf(cmd.ErrOrStderr(), "not in the output: %s: %s\n", left.What, left.Reason)
	}
	return r.write(cmd.OutOrStdout(), out)
}

// guard refuses to write secrets where others can read them: any process on the machine can read
// user data, and standard output may go anywhere.
func (r *renderRun) guard(secrets []string) error {
	ownersOnly := r.output != "-" && (r.target == "dir" || r.target == "script")
	if len(secrets) == 0 || r.allowSecrets || ownersOnly {
		return nil
	}
	reason := "pods can read user data on most clouds"
	if r.target == "script" {
		reason = "standard output may go anywhere; --output writes a file for its owner only"
	}
	return fmt.Errorf("the output would contain secrets of %s: %s; --allow-secrets allows it: %w", strings.Join(secrets, ", "), reason, errs.Unsupported)
}

// write writes the rendering to its destination.
func (r *renderRun) write(stdout io.Writer, out render.Output) error {
	switch {
	case r.target == "dir":
		return writeTree(r.output, out)
	case r.output == "-":
		_, err := stdout.Write(out.Text)
		return err
	}
	mode := os.FileMode(0o600)
	if r.target == "script" {
		mode = 0o700
	}
	return privatefile.Write(r.output, out.Text, mode)
}
