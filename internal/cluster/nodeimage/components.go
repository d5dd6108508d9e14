package nodeimage

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
)

// component is a part of Kubernetes that runs in a pod: one static program.
type component struct {
	// name is the last part of its image's name, and the name of its program.
	name string
	// program is its path in manifests and images of Kubernetes.
	program string
	// entrypoint: the manifest has options only.
	entrypoint bool
	// firewall: it runs the firewall tools.
	firewall bool
}

// components are those that kubeadm runs.
func components() []component {
	return []component{
		{name: "etcd", program: "/usr/local/bin/etcd"},
		{name: "kube-apiserver", program: "/usr/local/bin/kube-apiserver"},
		{name: "kube-controller-manager", program: "/usr/local/bin/kube-controller-manager"},
		{name: "kube-scheduler", program: "/usr/local/bin/kube-scheduler"},
		{name: "kube-proxy", program: "/usr/local/bin/kube-proxy", firewall: true},
		{name: "coredns", program: "/coredns", entrypoint: true},
	}
}

// programs are those that run on the node itself.
func programs() []string { return []string{"kubeadm", "kubelet", "kubectl"} }

// imagesOf finds the image of each component among those that kubeadm names. Its pause
// image is left out: berth needs none.
func imagesOf(listed []string) (map[string]string, error) {
	images := map[string]string{}
	for _, image := range listed {
		tagged, ok := parseTagged(image)
		if !ok {
			continue
		}
		name := path.Base(tagged.Name())
		if slices.ContainsFunc(components(), func(c component) bool { return c.name == name }) {
			images[name] = image
		}
	}
	var missing []string
	for _, c := range components() {
		if images[c.name] == "" {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("kubeadm config images list names no image for %s: %w", strings.Join(missing, ", "), errs.Unsupported)
	}
	return images, nil
}

// parseTagged parses the name of an image; ok is false for one without a tag.
func parseTagged(image string) (tagged reference.NamedTagged, ok bool) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, false
	}
	tagged, ok = named.(reference.NamedTagged)
	return tagged, ok
}

// files are what the image of a component has in it.
func (c component) files(binaries, rootfs string) ([]entry, error) {
	all := []entry{{path: c.program, from: filepath.Join(binaries, c.name)}}
	if !c.firewall {
		return all, nil
	}
	tools, err := firewallTools(rootfs)
	if err != nil {
		return nil, err
	}
	return append(all, tools...), nil
}

func (c component) settings() settings {
	s := settings{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	if c.entrypoint {
		s.Entrypoint = []string{c.program}
	}
	return s
}
