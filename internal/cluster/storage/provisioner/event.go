package provisioner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthrun/berth/internal/cluster/storage"
)

// recordEvent creates an event. Only the first node creates it, and only once until the API server
// drops it.
func (p *provisioner) recordEvent(ctx context.Context, e *corev1.Event) {
	e.Source.Host, e.ReportingInstance = p.node, p.node
	if err := p.api.CreateEvent(ctx, e); err != nil && !apierrors.IsAlreadyExists(err) {
		p.log.Warn("cannot create an event", "about", e.InvolvedObject.Name, "message", e.Message, "error", err)
	}
}

func claimEvent(c *corev1.PersistentVolumeClaim, level, reason, message string) *corev1.Event {
	return event(claimKind, c.ObjectMeta, c.Namespace, level, reason, message)
}

func volumeEvent(v *corev1.PersistentVolume, level, reason, message string) *corev1.Event {
	return event(volumeKind, v.ObjectMeta, metav1.NamespaceDefault, level, reason, message)
}

// event has the same name for the same text.
func event(kind string, about metav1.ObjectMeta, namespace, level, reason, message string) *corev1.Event {
	sum := sha256.Sum256([]byte(string(about.UID) + "\x00" + reason + "\x00" + message))
	const longestName = 200 // of 253
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: about.Name[:min(len(about.Name), longestName)] + "." + hex.EncodeToString(sum[:8]),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: kind, Namespace: about.Namespace, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
		},
		Type: level, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: storage.Provisioner}, ReportingController: storage.Provisioner,
	}
}
