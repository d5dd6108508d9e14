package network

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthrun/berth/internal/errs"
)

// The annotations that limit a pod's bandwidth, in bits per second.
const (
	AnnotationIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationEgress  = "kubernetes.io/egress-bandwidth"
)

// Bandwidth reads the limits of what a pod receives and sends, in bits per second, 0 for
// none. Errors have kind Invalid.
func Bandwidth(annotations map[string]string) (ingress, egress uint64, err error) {
	if ingress, err = rate(annotations, AnnotationIngress); err != nil {
		return 0, 0, err
	}
	egress, err = rate(annotations, AnnotationEgress)
	return ingress, egress, err
}

// quantityForm matches a quantity of a sane size. ParseQuantity accepts an exponent of any
// size, and comparing such a quantity would take the daemon minutes and all memory.
var quantityForm = regexp.MustCompile(`^[+-]?[0-9.]{1,20}(m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// rate reads one annotation, 0 when it is absent. Beyond 1k to 1P it is a mistake.
func rate(annotations map[string]string, key string) (uint64, error) {
	text, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	if !quantityForm.MatchString(text) {
		return 0, fmt.Errorf("config.annotations[%q]: %q is no quantity such as 10M: %w", key, text, errs.Invalid)
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("config.annotations[%q]: %q: %w: %w", key, text, err, errs.Invalid)
	}
	low, high := resource.MustParse("1k"), resource.MustParse("1P")
	if quantity.Cmp(low) < 0 || quantity.Cmp(high) > 0 {
		return 0, fmt.Errorf("config.annotations[%q]: %q is not between 1k and 1P bits per second: %w", key, text, errs.Invalid)
	}
	return uint64(quantity.Value()), nil
}
