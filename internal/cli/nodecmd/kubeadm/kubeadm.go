// Package kubeadm is `berth node kubeadm`: configurations with which kubeadm uses a node.
package kubeadm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/privatefile"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/kubeadmconf"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// New returns `berth node kubeadm`, which writes configurations for kubeadm.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubeadm",
		Short: "Write the configuration with which kubeadm creates or joins a cluster",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newInit(), newJoin())
	return cmd
}

// configRun is one run of `berth node kubeadm init` or `join`. Flags that kubeadm has, too, have
// kubeadm's names.
type configRun struct {
	session.Flags
	out             string
	name, address   string
	token, tokenIn  string
	init            kubeadmconf.Init
	join            kubeadmconf.Join
	nodeDescription *nodefile.Node
}

func newInit() *cobra.Command {
	k := &configRun{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the configuration for kubeadm init",
		Long: "init writes what `kubeadm init --config FILE` reads, for the node file: InitConfiguration,\n" +
			"ClusterConfiguration and KubeletConfiguration of kubeadm.k8s.io/v1beta4. It changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return k.write(cmd, "init", func(n kubeadmconf.Node) (string, error) {
				if err := node.NoPodsOutside(k.nodeDescription, k.init.PodSubnet); err != nil {
					return "", err
				}
				k.init.Token = k.token
				return kubeadmconf.ForInit(n, k.init)
			})
		},
	}
	k.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&k.init.Version, "kubernetes-version", "", "version of the control plane; empty: that of the machine's kubeadm, or kubelet")
	flags.StringVar(&k.init.PodSubnet, "pod-network-cidr", "", "addresses of the cluster's pods, one CIDR or one of each family; empty: nodes get no range")
	flags.StringVar(&k.init.ServiceSubnet, "service-cidr", "", "addresses of Services; empty: kubeadm's 10.96.0.0/12")
	flags.StringVar(&k.init.Endpoint, "control-plane-endpoint", "", "host:port of all API servers, for a cluster with more than one")
	return cmd
}

func newJoin() *cobra.Command {
	k := &configRun{}
	cmd := &cobra.Command{
		Use:   "join HOST:PORT",
		Short: "Write the configuration for kubeadm join",
		Long: "join writes what `kubeadm join --config FILE` reads, for the node file: a JoinConfiguration of\n" +
			"kubeadm.k8s.io/v1beta4. It changes nothing. `kubeadm token create --print-join-command` on a control plane\n" +
			"prints the arguments; they mean the same here.",
		Example: "  berth node kubeadm join 192.0.2.10:6443 --token abcdef.0123456789abcdef \\\n" +
			"    --discovery-token-ca-cert-hash sha256:... --out join.yaml",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return k.write(cmd, "join", func(n kubeadmconf.Node) (string, error) {
				k.join.Endpoint, k.join.Token = args[0], k.token
				return kubeadmconf.ForJoin(n, k.join)
			})
		},
	}
	k.register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&k.join.Hashes, "discovery-token-ca-cert-hash", nil, "sha256:… of the key of the cluster's authority; may be given again")
	flags.BoolVar(&k.join.SkipCA, "discovery-token-unsafe-skip-ca-verification", false, "trust any API server, without a hash")
	flags.BoolVar(&k.join.ControlPlane, "control-plane", false, "the node is a control plane")
	flags.StringVar(&k.join.CertificateKey, "certificate-key", "", "key of the certificates that `kubeadm init --upload-certs` has uploaded; with --control-plane")
	return cmd
}

func (k *configRun) register(cmd *cobra.Command) {
	k.Flags.Register(cmd, true)
	flags := cmd.Flags()
	flags.StringVarP(&k.out, "out", "o", "-", "file to write, for its owner only; - is standard output")
	flags.StringVar(&k.name, "node-name", "", "name of the node; empty: kubelet.flags.hostname-override of the node file, or the machine's")
	flags.StringVar(&k.address, "apiserver-advertise-address", "", "address of an API server on this node; empty: kubelet.flags.node-ip of the node file, or that of the default route")
	flags.StringVar(&k.token, "token", "", "token to join with")
	flags.StringVar(&k.tokenIn, "token-file", "", "file that has the token, so that no list of processes shows it; - is standard input")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
}

// write builds a configuration and writes it. verb is kubeadm's.
func (k *configRun) write(cmd *cobra.Command, verb string, render func(kubeadmconf.Node) (string, error)) error {
	s, err := k.Open(cmd)
	if err != nil {
		return err
	}
	defer s.Close()
	made, text, err := k.describe(cmd, s)
	if err != nil {
		return err
	}
	if err := k.readToken(cmd.InOrStdin()); err != nil {
		return err
	}
	config, err := render(made)
	if err != nil {
		return nodefile.Locate(err, k.File, text)
	}
	config = "# Made by `berth node kubeadm " + verb + "` for `kubeadm " + verb + " --config`.\n" + config
	k.notes(cmd.ErrOrStderr(), s, made)
	if k.out == "-" {
		_, err := io.WriteString(cmd.OutOrStdout(), config)
		return err
	}
	if err := privatefile.Write(k.out, []byte(config), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s is written; next: kubeadm %s --config %s\n", k.out, verb, k.out)
	return nil
}

// describe returns the facts of the node from node file, machine and flags. text is the node file.
func (k *configRun) describe(cmd *cobra.Command, s *session.Session) (made kubeadmconf.Node, text []byte, err error) {
	if k.Root != "/" && !cmd.Flags().Changed("file") {
		k.File = filepath.Join(k.Root, nodefile.DefaultFile)
	}
	if k.nodeDescription, text, err = source.Load(cmd.Context(), k.File, "", cmd.InOrStdin()); err != nil {
		return kubeadmconf.Node{}, nil, err
	}
	if made, err = node.Kubeadm(cmd.Context(), s.Host, k.nodeDescription); err != nil {
		return kubeadmconf.Node{}, nil, nodefile.Locate(err, k.File, text)
	}
	if k.name != "" {
		made.Name = k.name
	}
	if k.address != "" {
		made.Address = k.address
	}
	return made, text, nil
}

// tokenLimit bounds a file with a token.
const tokenLimit = 4 << 10

func (k *configRun) readToken(stdin io.Reader) error {
	from := stdin
	switch {
	case k.tokenIn == "":
		return nil
	case k.tokenIn == "-" && k.File == "-":
		return fmt.Errorf("--file and --token-file are both standard input; name a file for one of them: %w", errs.Invalid)
	case k.tokenIn != "-":
		file, err := os.Open(k.tokenIn)
		if err != nil {
			return fmt.Errorf("cannot read the token: %w", err)
		}
		defer file.Close()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, tokenLimit))
	if err != nil {
		return fmt.Errorf("cannot read the token: %w", err)
	}
	k.token = strings.TrimSpace(string(text))
	return nil
}

// notes says what the user should know of the machine before kubeadm runs.
func (k *configRun) notes(out io.Writer, s *session.Session, made kubeadmconf.Node) {
	if made.CgroupV1 {
		fmt.Fprintln(out, "note: the machine has cgroup v1. The configuration lets the kubelet start with it (failCgroupV1: false).")
	}
	if made.Refused() {
		fmt.Fprintln(out, "note: kubeadm refuses cgroup v1 by its check SystemVerification, which the configuration therefore ignores; `berth node doctor --kubeadm` makes the same checks.")
	}
	if _, err := s.Host.Files().Stat(made.Socket); err != nil && s.Host.Live() {
		fmt.Fprintf(out, "note: %s is not there; run `berth node apply` before kubeadm.\n", made.Socket)
	}
}
