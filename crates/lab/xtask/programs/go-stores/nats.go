package main

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

type natsStore struct{ js nats.JetStreamContext }

func (s natsStore) put(n int, v []byte) error {
	_, err := s.js.Publish(fmt.Sprintf("zoo.%04d", n), v)
	return err
}

func (s natsStore) get(n int) ([]byte, error) {
	m, err := s.js.GetLastMsg("zoo", fmt.Sprintf("zoo.%04d", n))
	if err == nats.ErrMsgNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

func openNats() (store, error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: ".", SyncAlways: true,
		NoLog: true, NoSigs: true, DontListen: true,
	})
	if err != nil {
		return nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, fmt.Errorf("the server does not start")
	}
	c, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return nil, err
	}
	js, err := c.JetStream()
	if err != nil {
		return nil, err
	}
	// What a client does at its start: the stream is made unless it is there.
	_, err = js.AddStream(&nats.StreamConfig{Name: "zoo", Subjects: []string{"zoo.*"}, Storage: nats.FileStorage})
	return natsStore{js}, err
}

func init() {
	kinds["nats"] = kind{"github.com/nats-io/nats-server/v2", openNats}
}
