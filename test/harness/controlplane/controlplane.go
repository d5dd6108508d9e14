// Package controlplane runs etcd and kube-apiserver as plain processes in a berth's host namespace,
// for kubelets whose pods come from an API. There is no scheduler and no controller: pods name
// their node.
package controlplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The node that may join, and the address at which it finds the API.
const (
	Node    = "node0"
	address = "192.0.2.10"
)

// ControlPlane is a running one.
type ControlPlane struct {
	// Core is an administrator's client, for version v1 of the core group.
	Core *rest.RESTClient
	// KubeletConfig is the path of the kubeconfig of Node's kubelet.
	KubeletConfig string

	t     testing.TB
	berth *harness.Berth
	dir   string
	bin   string
}

// Start starts a control plane, and ends it with the test. Its binaries are beside the kubelet that
// KUBELET names.
func Start(t testing.TB, b *harness.Berth) *ControlPlane {
	t.Helper()
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	c := &ControlPlane{t: t, berth: b, dir: filepath.Join(b.Dir, "control-plane"), bin: filepath.Dir(kubelet)}
	c.KubeletConfig = c.path("kubelet.conf")
	if err := os.MkdirAll(c.path("etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.certify()
	c.launch("etcd", "--name=etcd0", "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--cert-file="+c.pki("etcd/server.crt"), "--key-file="+c.pki("etcd/server.key"),
		"--client-cert-auth=true", "--trusted-ca-file="+c.pki("etcd/ca.crt"),
		"--listen-client-urls=https://127.0.0.1:2379", "--advertise-client-urls=https://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=etcd0=http://127.0.0.1:2380")
	c.launch("kube-apiserver", "--advertise-address="+address, "--secure-port=6443",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--client-ca-file="+c.pki("ca.crt"),
		"--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile="+c.pki("etcd/ca.crt"),
		"--etcd-certfile="+c.pki("apiserver-etcd-client.crt"), "--etcd-keyfile="+c.pki("apiserver-etcd-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.pki("sa.pub"),
		"--service-account-signing-key-file="+c.pki("sa.key"), "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+c.pki("apiserver.crt"), "--tls-private-key-file="+c.pki("apiserver.key"))
	c.connect()
	return c
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }
func (c *ControlPlane) pki(name string) string  { return filepath.Join(c.dir, "pki", name) }

// certify makes certificates and the kubeconfigs that hold some of them.
func (c *ControlPlane) certify() {
	c.t.Helper()
	config := fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %s, bindPort: 6443}
nodeRegistration: {name: %s, criSocket: "unix://%s"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.0
certificatesDir: %s
networking: {serviceSubnet: 10.96.0.0/16}
`, address, Node, c.berth.Socket, c.path("pki"))
	if err := os.WriteFile(c.path("kubeadm.yaml"), []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
	for _, phase := range [][]string{{"certs", "all"}, {"kubeconfig", "all", "--kubeconfig-dir=" + c.dir}} {
		argv := append([]string{"init", "phase"}, phase...)
		cmd := c.berth.InHost(filepath.Join(c.bin, "kubeadm"), append(argv, "--config="+c.path("kubeadm.yaml"))...)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("kubeadm init phase %s: %v\n%s", phase[0], err, out)
		}
	}
}

// launch starts a process whose log is below the control plane's directory.
func (c *ControlPlane) launch(name string, args ...string) {
	c.t.Helper()
	log, err := os.Create(c.path(name + ".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	process := c.berth.InHost(filepath.Join(c.bin, name), args...)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.end(process) })
}

func (c *ControlPlane) end(process *exec.Cmd) {
	_ = process.Process.Signal(syscall.SIGKILL)
	_ = process.Wait()
}

// connect makes the client and waits for the API.
func (c *ControlPlane) connect() {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.path("super-admin.conf"))
	if err != nil {
		c.t.Fatal(err)
	}
	config.Dial = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = sysns.InNetNS("/run/netns/"+c.berth.NetNS, func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	config.QPS, config.Burst = 200, 400
	config.WarningHandler = rest.NoWarnings{}
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.Core, err = rest.RESTClientFor(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.await("the API", func(ctx context.Context) error {
		return c.Core.Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// AwaitNode waits until the node has joined and is ready.
func (c *ControlPlane) AwaitNode() {
	c.t.Helper()
	c.await("the node to be ready", func(ctx context.Context) error {
		var node corev1.Node
		if err := c.Core.Get().Resource("nodes").Name(Node).Do(ctx).Into(&node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
			} else if condition.Type == corev1.NodeReady {
				return nil
			}
		}
		return fmt.Errorf("it has no condition")
	})
}

// await polls: neither an API that starts nor a node that joins has an event for it.
func (c *ControlPlane) await(what string, done func(context.Context) error) {
	c.t.Helper()
	deadline := time.Now().Add(require.Patience(3 * time.Minute))
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := done(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(c.path("kube-apiserver.log"))
			c.t.Fatalf("timed out waiting for %s: %v\n%s", what, err, log[max(0, len(log)-8<<10):])
		}
		time.Sleep(200 * time.Millisecond)
	}
}
