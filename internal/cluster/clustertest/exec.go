package clustertest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// CrashChecks is how often a node was checked for crashes.
func (f *Fake) CrashChecks() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Asks
}

func (f *Fake) Exec(ctx context.Context, name string, c provider.Command) error {
	line := strings.Join(c.Args, " ")
	if f.Waits != nil && strings.HasPrefix(line, "kubeadm init --config") {
		if err := f.Waits(ctx); err != nil {
			return err
		}
	}
	if len(c.Args) > 0 && c.Args[0] == "bash" {
		return f.connect(ctx, name, c)
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, file := range c.Files {
		f.Files[name+":"+file.Path] = string(file.Content)
	}
	if len(c.Args) > 0 {
		f.Ran = append(f.Ran, name+": "+line)
	}
	if f.FailOnce != "" && strings.HasPrefix(line, f.FailOnce) {
		f.FailOnce = ""
		return ErrFake
	}
	if strings.Contains(line, "import") && c.Stdin != nil {
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.Files[name+":image"] += string(text)
	}
	if strings.HasPrefix(line, "kubectl") && strings.Contains(line, " apply") {
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.Files[name+":applied"] += string(text)
	}
	if f.FailOn != "" && (strings.HasPrefix(line, f.FailOn) || strings.HasPrefix(name+": "+line, f.FailOn)) {
		return ErrFake
	}
	if !slices.ContainsFunc(f.Nodes, func(n provider.Node) bool { return n.Name == name && n.Running }) {
		return fmt.Errorf("%s does not run: %w", name, errs.State)
	}
	if c.Stdout == nil {
		if err := f.call(); err != nil {
			return err
		}
	}
	out, err := f.answer(name, line, c)
	if err != nil {
		return err
	}
	if c.Stdout != nil {
		fmt.Fprint(c.Stdout, out)
	}
	return nil
}

// connect connects a command's input and output to the API server, as package tunnel does in a control plane, or to the registry.
func (f *Fake) connect(ctx context.Context, name string, c provider.Command) error {
	address := f.Address().String()
	if name == plan.RegistryName {
		address = fmt.Sprintf("127.0.0.1:%d", f.RegistryPort)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, c.Stdin) // the end of either direction ends the connection
		conn.Close()
	}()
	_, _ = io.Copy(c.Stdout, conn)
	return nil
}

// answer returns what a command in a node writes, and makes its changes. The first group that knows
// the command answers; an unknown command writes nothing.
func (f *Fake) answer(name, line string, c provider.Command) (string, error) {
	for _, group := range []func(name, line string, c provider.Command) (out string, known bool, err error){
		f.showFile, f.changeCluster, f.showState,
	} {
		if out, known, err := group(name, line, c); known {
			return out, err
		}
	}
	return "", nil
}

var errNoFile = errors.New("no such file")

// showFile answers the commands that show a file or an image of a node.
func (f *Fake) showFile(name, line string, c provider.Command) (out string, known bool, err error) {
	switch {
	case strings.HasSuffix(line, "cat /usr/share/berth/kubernetes-version"):
		if f.Kind[name] || f.Versions[f.image(name)] == "none" {
			return "", true, errNoFile
		}
		return cmp.Or(f.Versions[f.image(name)], "v1.36.3") + "\n", true, nil
	case strings.HasSuffix(line, "cat /kind/version"):
		if !f.Kind[name] {
			return "", true, errNoFile
		}
		return "v1.36.3", true, nil
	case line == "cat "+kubeadm.AdminFile:
		return `{"apiVersion":"v1","kind":"Config","current-context":"a","clusters":[{"name":"a","cluster":{"server":"https://x","insecure-skip-tls-verify":true}}],` +
			`"users":[{"name":"a","user":{}}],"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}]}`, true, nil
	case line == "cat "+innode.BalancerFile:
		return f.Balanced, true, nil
	case strings.HasPrefix(line, "cat "), strings.HasPrefix(line, "sh -c ! test -e /kind"), strings.HasPrefix(line, "containerd config"), strings.HasPrefix(line, "ctr"):
		return f.Files[name+":"+c.Args[len(c.Args)-1]], true, nil
	case line == "berth image layers -o json":
		return cmp.Or(f.Has[name], "[]"), true, nil
	}
	return "", false, nil
}

// changeCluster answers the commands that change the cluster, and those that copy its authorities.
func (f *Fake) changeCluster(name, line string, c provider.Command) (out string, known bool, err error) {
	switch {
	case strings.HasPrefix(line, "kubeadm init phase"):
	case strings.HasPrefix(line, "kubeadm"):
		f.checkJoin(name, line)
		f.Joined = append(f.Joined, name)
		if strings.Contains(name, "control-plane") {
			f.Etcd = append(f.Etcd, name)
		}
	case strings.Contains(line, "in-node rebalance"):
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", true, err
		}
		f.Balanced = string(text)
	case strings.Contains(line, "in-node forget-member"):
		f.Etcd = slices.DeleteFunc(f.Etcd, func(m string) bool { return m == c.Args[4] })
	case strings.Contains(line, "net route set "):
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", true, err
		}
		f.Files[name+":routes"] = string(text)
	case strings.HasPrefix(line, "tar --create"):
		out = "authorities"
	case strings.HasPrefix(line, "tar --extract"):
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", true, err
		}
		f.Files[name+":pki"] = string(text)
	default:
		return "", false, nil
	}
	return out, true, nil
}

// showState answers the commands that show the processes of a node and their logs.
func (f *Fake) showState(_, line string, _ provider.Command) (out string, known bool, err error) {
	switch {
	case strings.Contains(line, "--property=NRestarts"):
		if f.Asks++; len(f.Parts) > 0 {
			out = f.Parts[min(f.Asks, len(f.Parts))-1]
		}
	case f.CrashLog != "" && strings.HasSuffix(line, f.CrashLog):
		out = f.CrashText
	case strings.HasPrefix(line, "journalctl"):
		out = "kubelet: cannot find its feet\n"
	case line == "date +%s":
		out = fmt.Sprintln(time.Now().Add(-f.Behind).Unix())
	case strings.HasPrefix(line, "sed"):
		out = "builtin\n"
	case strings.HasPrefix(line, "sh -c tar"):
		out, err = archiveOfLogs()
	default:
		return "", false, nil
	}
	return out, true, err
}

// archiveOfLogs returns a tar archive with the log of one pod.
func archiveOfLogs() (string, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	const log = "log of etcd"
	if err := w.WriteHeader(&tar.Header{Name: "./pods/kube-system_etcd/0.log", Typeflag: tar.TypeReg, Size: int64(len(log))}); err != nil {
		return "", err
	}
	if _, err := w.Write([]byte(log)); err != nil {
		return "", err
	}
	return text.String(), nil
}
