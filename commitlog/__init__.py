"""An event-sourced commit log on Kafka for Lance tables."""
