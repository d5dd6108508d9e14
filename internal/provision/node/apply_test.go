package node

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// machine returns a fresh machine with a release. It has everything that a target may need.
func machine(target provision.Target) *provisiontest.Host {
	h := provisiontest.New()
	ok := func(provision.Command) ([]byte, error) { return nil, nil }
	for _, program := range []string{"/bin/sh", "systemctl", "ctr", "docker", "podman", "containerd", "crio", "dockerd", "nft"} {
		h.Programs[program] = ok
		for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/opt/bin", "/home/kubernetes/bin"} {
			h.Programs[path.Join(dir, program)] = ok
			h.Programs[path.Join(dir, "berth")] = ok
		}
	}
	for _, dir := range []string{"/usr/lib", "/usr/lib/systemd", "/usr/lib/systemd/system"} {
		if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
			panic(err)
		}
	}
	unit := func(names ...string) map[string]string {
		files := map[string]string{}
		for _, name := range names {
			files["/usr/lib/systemd/system/"+name] = "[Service]\nExecStart=/usr/bin/x\n"
		}
		return files
	}
	for _, task := range target.Tasks {
		switch task := task.(type) {
		case tasks.Packages:
			for _, pkg := range task.Install {
				entry := provisiontest.Package{Version: pkg.Version, Files: unit()}
				if pkg.Version == "" {
					entry.Version = "1"
				}
				for key, name := range map[string]string{"containerd": "containerd.service", "cri-o": "crio.service", "docker": "docker.service", "moby": "docker.service", "chrony": "chrony.service"} {
					if strings.HasPrefix(pkg.Name, key) {
						entry.Files = unit(name)
					}
				}
				h.Repository[pkg.Name] = entry
			}
		case tasks.Asset:
			h.Sources[task.Ref.Sources[0]] = members(task)
		case tasks.Modules:
			for _, name := range task.Names {
				h.SetModule(name, provision.ModuleAvailable)
			}
		case tasks.Sysctls:
			for _, value := range task.Values {
				h.SetSysctlNow(value.Key, "0")
			}
		}
	}
	return h
}

// members returns an invented asset in which each pick finds a file.
func members(asset tasks.Asset) map[string]string {
	if base := path.Base(asset.Ref.Sources[0]); !strings.Contains(base, ".t") {
		return map[string]string{base: asset.Ref.Name} // a single binary
	}
	found := map[string]string{}
	for _, pick := range asset.Pick {
		if pick.Min == 0 {
			continue
		}
		pattern := pick.Layouts[0][0]
		name := map[string]string{"opt/cni/bin/*": "opt/cni/bin/ptp", "kubernetes/node/bin/*": "kubernetes/node/bin/kubelet", "usr/local/bin/*": "usr/local/bin/tool"}[pattern]
		if name == "" {
			name = strings.ReplaceAll(pattern, "*", "daemon")
		}
		found[name] = name
	}
	return found
}

func newReconciler(t *testing.T, h *provisiontest.Host) *reconciler.Reconciler {
	t.Helper()
	e, err := reconciler.New(reconciler.Config{
		Host: h, Kinds: tasks.Kinds(), Version: "test",
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestApplyTwiceAndReset: apply accepts the result of Build. A second apply has nothing to do, and
// a reset leaves the machine as it was.
func TestApplyTwiceAndReset(t *testing.T) {
	texts := map[string]string{
		"full crio":       full("crio", assets("cri-o.amd64.v1.36.3.tar.gz")),
		"full containerd": full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64", "runsc")),
		"kubeadm":         "runtime: {name: berth}\nkubelet: {kubeadm: true, assets: " + assets("kubelet", "kubeadm") + "}\n",
	}
	for _, row := range rows() {
		texts[row.name] = row.text
	}
	for name := range texts {
		// The load of an image needs a runtime that answers.
		texts[name] = regexp.MustCompile(`(?m)^images:.*\n`).ReplaceAllString(texts[name], "")
	}
	for _, release := range []string{"debian 12", "rocky 9", "fedora 44", "flatcar"} {
		applied := 0
		for name, text := range texts {
			f := factsOf(t, release)
			f.Credentials = map[string]string{"/etc/berth/hub.auth": "a:b"}
			target, err := Build(load(t, text), f)
			if err != nil {
				continue // the golden files have the refused rows and the reasons
			}
			applied++
			t.Run(fmt.Sprint(release, " ", name), func(t *testing.T) {
				target.Gates = nil // this machine lacks the files that they read
				h := machine(target)
				before := h.Tree(reconciler.StateDir, "/var/lib/berth")
				if _, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				plan, err := newReconciler(t, h).Plan(t.Context(), target)
				if err != nil {
					t.Fatal(err)
				}
				if !plan.Empty() {
					t.Errorf("a second apply would change: %+v", plan)
				}
				e := newReconciler(t, h)
				back, err := e.PlanReset(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := e.Reset(t.Context(), back, reconciler.BackOptions{}); err != nil {
					t.Fatal(err)
				}
				after := h.Tree(reconciler.StateDir, "/var/lib/berth")
				// The kernel's modules stay.
				loaded := func(line string) bool { return strings.HasPrefix(line, "module ") }
				if diff := cmp.Diff(slices.DeleteFunc(before, loaded), slices.DeleteFunc(after, loaded)); diff != "" {
					t.Errorf("after reset:\n%s", diff)
				}
			})
		}
		if applied == 0 {
			t.Errorf("%s: every description is refused", release)
		}
	}
}
