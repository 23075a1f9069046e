"""OpenAI's Responses API: requests, items, response objects, events, stored responses; knows neither HTTP nor
the engine.
"""
