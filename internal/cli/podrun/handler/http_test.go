package handler

import (
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestHeadersOfProbes: the headers of the file go before those that each probe has.
func TestHeadersOfProbes(t *testing.T) {
	var got http.Header
	var host string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, host = r.Header, r.Host }))
	defer server.Close()
	ip, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	target := &Target{Container: &corev1.Container{}, PodIP: ip}
	for _, c := range []struct {
		file []corev1.HTTPHeader
		host string
		want http.Header
	}{
		{nil, server.Listener.Addr().String(), http.Header{"User-Agent": {"berth-probe"}, "Accept": {"*/*"}}},
		{
			[]corev1.HTTPHeader{{Name: "user-agent", Value: "me"}, {Name: "accept", Value: "text/plain"}, {Name: "X", Value: "1"}, {Name: "X", Value: "2"}, {Name: "host", Value: "web"}},
			"web",
			http.Header{"User-Agent": {"me"}, "Accept": {"text/plain"}, "X": {"1", "2"}},
		},
		{
			[]corev1.HTTPHeader{{Name: "User-Agent"}, {Name: "Accept"}},
			server.Listener.Addr().String(),
			http.Header{},
		},
	} {
		err := target.tryHTTP(t.Context(), &corev1.HTTPGetAction{Path: "/", Scheme: corev1.URISchemeHTTP, Port: intstr.FromInt(number), HTTPHeaders: c.file})
		if err != nil {
			t.Fatal(err)
		}
		got.Del("Connection") // it is of the transport
		if host != c.host || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: the server has %v for %s, want %v for %s", c.file, got, host, c.want, c.host)
		}
	}
}
