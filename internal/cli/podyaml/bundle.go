package podyaml

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/cli/podyaml/pullsecret"
	"github.com/berthrun/berth/internal/cli/podyaml/security"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// Bundle is one pod with the documents that it refers to.
type Bundle struct {
	source.Documents
	// Handler is the runtime class, "" for the default.
	Handler string
	// claims are where the pod's claims are bound to, by name: volumes of the file.
	claims map[string]*corev1.PersistentVolume
	place  document.Place
}

// expand makes the pods of a workload.
func (d *documents) expand(w *Workload) error {
	pods, err := w.Expand()
	if err != nil {
		return err
	}
	for _, pod := range pods {
		b, err := d.bundle(pod, w.Place)
		if err != nil {
			return err // the others have the same faults
		}
		w.Pods = append(w.Pods, b)
	}
	return nil
}

// bundle makes one pod of the file: with the documents of its namespace.
func (d *documents) bundle(pod *corev1.Pod, at document.Place) (*Bundle, error) {
	b := &Bundle{place: at, Documents: source.Documents{
		Pod: pod, ConfigMaps: map[string]*corev1.ConfigMap{}, Secrets: map[string]*corev1.Secret{},
	}}
	setDefaults(pod)
	for _, m := range d.configMaps {
		if sameNamespace(m.Namespace, pod.Namespace) {
			b.ConfigMaps[m.Name] = m
		}
	}
	for _, s := range d.secrets {
		if sameNamespace(s.Namespace, pod.Namespace) {
			b.Secrets[s.Name] = s
		}
	}
	if err := b.bindClaims(d); err != nil {
		return nil, err
	}
	if pod.Spec.RuntimeClassName != nil {
		b.Handler = *pod.Spec.RuntimeClassName
	}
	return b, b.validate()
}

// Credentials are those of the pod's imagePullSecrets that the file has. Secrets that
// it lacks are named: as under a kubelet, the pull goes on without them.
func (b *Bundle) Credentials() (all []pullsecret.Credential, missing []string) {
	for _, ref := range b.Pod.Spec.ImagePullSecrets {
		s := b.Secrets[ref.Name]
		if s == nil {
			missing = append(missing, ref.Name)
			continue
		}
		found, err := pullsecret.Credentials(s)
		if err != nil {
			continue // validate has refused it
		}
		all = append(all, found...)
	}
	return all, missing
}

// Hosts makes the text of the pod's hosts file, with the pods of the file's Services.
func (b *Bundle) Hosts(facts *Facts, services []network.Names) string {
	return network.Hosts(b.Pod, facts.HostHosts, facts.PodIPs, services)
}

// RunAsNonRoot reports whether the container must not run as root, and the user that
// the YAML gives it (nil: the image decides).
func (b *Bundle) RunAsNonRoot(c *corev1.Container) (must bool, user *int64) {
	return security.RunAsNonRoot(b.Pod, c)
}
