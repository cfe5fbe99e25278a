"""Do memory and Kafka agree?"""
