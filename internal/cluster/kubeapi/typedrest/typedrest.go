// Package typedrest opens client-go's REST client for one API group, which encodes and decodes the
// Go types of that group. The client of all groups (client-go/kubernetes) would make berth a third
// larger.
package typedrest

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// New returns the REST client of an API group. apiPath is "/api" for the core group, else "/apis".
// types register the types that requests and responses have. Requests go through httpClient, or,
// where it is nil, through a client made from config.
func New(config *rest.Config, httpClient *http.Client, apiPath string, group schema.GroupVersion, types ...func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	for _, register := range types {
		if err := register(scheme); err != nil {
			return nil, fmt.Errorf("cannot register the types of %s: %w", group, err)
		}
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = apiPath, &group
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if httpClient == nil {
		return rest.RESTClientFor(c)
	}
	return rest.RESTClientForConfigAndClient(c, httpClient)
}
