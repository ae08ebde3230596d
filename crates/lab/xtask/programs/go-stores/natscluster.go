package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Three servers in this process, each with its store in a directory of its own, and a stream that
// all three have.
type natsCluster struct{ natsStore }

// Requests fail until each group of servers has a leader, which takes some seconds.
func again[T any](request func() (T, error)) (T, error) {
	end := time.Now().Add(45 * time.Second)
	for {
		result, err := request()
		if err == nil || err == nats.ErrMsgNotFound || time.Now().After(end) {
			return result, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s natsCluster) get(n int) ([]byte, error) {
	return again(func() ([]byte, error) { return s.natsStore.get(n) })
}

func openNatsCluster(syncAlways bool) (store, error) {
	nodes := []string{"a", "b", "c"}
	var routes []*url.URL
	for i := range nodes {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", 7101+i)})
	}
	var servers []*server.Server
	for i, node := range nodes {
		s, err := server.NewServer(&server.Options{
			ServerName: node, Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: node, SyncAlways: syncAlways,
			Cluster: server.ClusterOpts{Name: "zoo", Host: "127.0.0.1", Port: 7101 + i}, Routes: routes,
		})
		if err != nil {
			return nil, err
		}
		go s.Start()
		servers = append(servers, s)
	}
	for _, s := range servers {
		if !s.ReadyForConnections(30 * time.Second) {
			return nil, fmt.Errorf("server %s does not start", s.Name())
		}
	}
	c, err := nats.Connect("", nats.InProcessServer(servers[0]))
	if err != nil {
		return nil, err
	}
	js, err := c.JetStream()
	if err != nil {
		return nil, err
	}
	// What a client does at its start: the stream is made unless it is there.
	stream := &nats.StreamConfig{Name: "zoo", Subjects: []string{"zoo.*"}, Storage: nats.FileStorage, Replicas: 3}
	if _, err = again(func() (*nats.StreamInfo, error) { return js.AddStream(stream) }); err != nil {
		return nil, fmt.Errorf("the stream: %w", err)
	}
	// When a new message is acknowledged, the leader has all that a majority had.
	_, err = again(func() (*nats.PubAck, error) { return js.Publish("zoo.start", nil) })
	return natsCluster{natsStore{js}}, err
}

func init() {
	module := "github.com/nats-io/nats-server/v2"
	kinds["nats-3"] = kind{module, func() (store, error) { return openNatsCluster(true) }}
	kinds["nats-3-default"] = kind{module, func() (store, error) { return openNatsCluster(false) }}
}
